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


def learning_rate(default: float) -> Any:
    return option(default, "step size of the optimizer", low=0)


def lr_schedule() -> Any:
    return option(
        "linear",
        "learning rate over the run: constant, or falling from learning_rate to 0 along a line "
        "or half a cosine",
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


def max_grad_norm(default: float) -> Any:
    return option(
        default, "longest gradient; a longer one is scaled down to it (none: no limit)", above=0
    )


def optimizer() -> Any:
    return option("adam", "optimizer")


def optimizer_epsilon() -> Any:
    return option(1e-5, "ε in the denominator of the optimizer's step", low=0)


def normalize_advantages(default: bool) -> Any:
    return option(
        default, "give the advantages of each gradient step mean 0 and standard deviation 1"
    )


def normalize_observations() -> Any:
    return option(False, "normalize observations by their running mean and standard deviation")


def scale_rewards() -> Any:
    return option(
        False, "divide rewards by the running standard deviation of the discounted return"
    )
