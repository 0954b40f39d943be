"""Options that several algorithms have; each is described here once.

An algorithm's ``Config`` lists its options: ``gamma: float = common.gamma()``. Where the good
default differs from algorithm to algorithm, the algorithm gives it.
"""

from __future__ import annotations

from typing import Any

from jaxrl_scale.options import option


def has_schedule(options: Any) -> bool:
    """Whether a longer run differs from a shorter one before the shorter one ends, because its
    learning rate does."""
    return options.lr_schedule != "constant"


# --- options ------------------------------------------------------------------------------------


def recurrent() -> Any:
    return option(False, "make the last hidden layer a GRU, which has a memory")


def learning_rate(default: float) -> Any:
    return option(default, "step size of the optimizer", low=0)


def lr_schedule() -> Any:
    return option(
        "linear",
        "learning rate over the run: constant, or falling from learning_rate to 0 along a line "
        "or half a cosine",
    )


def lag(default: int) -> Any:
    return option(
        default,
        "how many iterations old the parameters that act are (0: they are the current)",
        low=0,
    )


def gamma() -> Any:
    return option(0.99, "discount factor", low=0, high=1)


def gae_lambda(default: float) -> Any:
    return option(
        default,
        "λ of generalised advantage estimation; 1 sums up the rewards of the whole rollout",
        low=0,
        high=1,
    )


def epochs(default: int) -> Any:
    return option(default, "passes over each rollout", low=1)


def minibatch_size(default: int) -> Any:
    return option(default, "samples of a gradient step, over all devices", low=1)


def entropy_coef() -> Any:
    return option(0.01, "weight of the entropy bonus", low=0)


def value_coef() -> Any:
    return option(0.5, "weight of the value loss", low=0)


def max_grad_norm(default: float | None) -> Any:
    return option(
        default, "longest gradient; a longer one is scaled down to it (none: no limit)", above=0
    )


def optimizer() -> Any:
    return option("adam", "optimizer; rmsprop: as in TensorFlow, its mean square begins at 1")


def optimizer_epsilon() -> Any:
    return option(
        1e-5,
        "ε in the denominator of the optimizer's step; Adam adds it to the root, RMSProp under it",
        low=0,
    )


def normalize_advantages(default: bool) -> Any:
    return option(
        default, "give the advantages of each gradient step mean 0 and standard deviation 1"
    )


def normalize_observations() -> Any:
    return option(False, "normalize observations by their running mean and standard deviation")


def scale_rewards() -> Any:
    return option(
        False,
        "divide rewards by the running standard deviation of the discounted return, and clip them "
        "to ±10",
    )


# --- of the Q-learning algorithms ---------------------------------------------------------------


def epsilon_start() -> Any:
    return option(1.0, "probability of a random action at the start of training", low=0, high=1)


def epsilon_end() -> Any:
    return option(0.05, "probability of a random action after exploration", low=0, high=1)


def exploration_fraction(default: float) -> Any:
    return option(
        default,
        "part of the run over which the probability of a random action falls from epsilon_start "
        "to epsilon_end; 0: after the first iteration, which has epsilon_start",
        low=0,
        high=1,
    )


def n_step(default: int) -> Any:
    return option(
        default, "number of rewards that a target adds up before it bootstraps from a value", low=1
    )


def batch_size() -> Any:
    return option(256, "transitions of a gradient step, over all devices", low=1)


def updates_per_iteration() -> Any:
    return option(64, "gradient steps after each rollout", low=1)


def replay_size(default: int) -> Any:
    return option(default, "most recent steps that replay holds, over all devices", low=1)


def learning_starts() -> Any:
    return option(10_000, "steps of the environments before the first gradient step", low=0)


def double() -> Any:
    return option(
        True,
        "double Q-learning: the network chooses the action in a target, the target network says "
        "what it is worth",
    )


def dueling(default: bool) -> Any:
    return option(
        default, "dueling network: separate streams for a state's value and for the advantages"
    )


def huber_delta() -> Any:
    return option(
        None,
        "errors larger than this count linearly instead of by their square (none: all count by "
        "their square)",
        above=0,
    )


def target_period() -> Any:
    return option(1, "gradient steps between two updates of the target network", low=1)


def tau() -> Any:
    return option(
        0.005,
        "fraction of the way that an update of the target network moves it towards the network "
        "(1 copies it)",
        low=0,
        high=1,
    )
