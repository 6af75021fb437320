"""The initial state of a run."""

from earnest.protocol.recipe import Recipe
from earnest.training.diloco.engine import warm_up
from earnest.training.diloco.state import State, read_parameters
from earnest.training.tasks.task import Task


def initial_state(task: Task, recipe: Recipe) -> State:
    """Returns a new model after `warmup_steps` steps on the task's warm-up samples, with outer momentum zero.

    The sponsor publishes it and its root is fixed on chain, so nobody computes it again. The warm-up uses the inner
    optimizer at the recipe's rate, which rises as in the run. Raises ValueError if the task reserves too few samples.
    """
    state = State.start(read_parameters(task.build_model(recipe.seed)), recipe.scoring.clip_norm)
    needed = recipe.warmup_steps * recipe.inner.batch
    if needed == 0:
        return state
    if needed > len(task.warmup_ids):
        raise ValueError(f"the warm-up needs {needed} samples, the task reserves {len(task.warmup_ids)}")
    return State.start(warm_up(task, recipe, state, task.warmup_ids[:needed]), recipe.scoring.clip_norm)
