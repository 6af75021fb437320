"""The outer optimizer's step: from the outer gradient to the next state, bit-identical everywhere (section 10)."""

from collections.abc import Mapping

from torch import Tensor

from earnest.training.codecs.update import float32
from earnest.training.diloco.state import State


def outer_step(state: State, outer_gradient: Mapping[str, Tensor], lr: float, momentum: float) -> State:
    """Takes one Nesterov step: b = mu * b + d; theta = theta - lr * (d + mu * b). Not called for a void round.

    The clip norm is not changed: the caller, who knows the round's consensus, sets the next one.
    """
    rate, decay = float32(lr), float32(momentum)
    parameters, momenta = {}, {}
    for name, value in state.parameters.items():
        gradient = outer_gradient[name]
        momenta[name] = state.momentum[name] * decay + gradient
        parameters[name] = value - (momenta[name] * decay + gradient) * rate
    return State(parameters, momenta, state.clip_norm)
