"""A trainer of several processes or hosts under torchrun: pipeline stages, replicas, shards (docs/parallel.md)."""

from earnest.training.parallel.launcher import ParallelTrainer, Rendezvous, WorkerGroup, WorkersFailed
from earnest.training.parallel.layout import Layout, LayoutError

__all__ = ["Layout", "LayoutError", "ParallelTrainer", "Rendezvous", "WorkerGroup", "WorkersFailed"]
