"""A trainer of several processes or hosts under torchrun: pipeline stages, replicas, shards (docs/parallel.md)."""

from earnest.training.parallel.launcher import Hosts, ParallelTrainer, Processes, WorkersFailed
from earnest.training.parallel.layout import Layout, LayoutError

__all__ = ["Hosts", "Layout", "LayoutError", "ParallelTrainer", "Processes", "WorkersFailed"]
