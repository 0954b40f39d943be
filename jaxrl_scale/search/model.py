"""Settings that a model of the scores proposes, in batches: Optuna's tree-structured Parzen
estimator (https://proceedings.neurips.cc/paper/2011/hash/86e8f7ab32cfd12577bc2619bc635690-Abstract.html).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl_scale.errors import RunError
from jaxrl_scale.search.results import Ranked
from jaxrl_scale.search.space import Range, Setting


def check() -> None:
    """Raise a `RunError` where Optuna is not installed."""
    _optuna()


def proposed(
    ranges: Sequence[Range],
    settings: Sequence[Setting],
    ranks: Sequence[Ranked],
    number: int,
    seed: int,
) -> list[Setting]:
    """The next ``number`` settings, which depend on the arguments alone.

    Args:
      settings: those that were tried.
      ranks: what came of them. A setting of which an agent failed is told as one that failed.
    """
    optuna = _optuna()
    of_option = {each.option: _distribution(optuna, each) for each in ranges}
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for one in sorted(ranks, key=lambda one: one.setting):
        failed, setting = one.failed or one.iqm is None, settings[one.setting]
        states = optuna.trial.TrialState
        study.add_trial(
            optuna.trial.create_trial(
                params={each.option: _told(each, setting[each.option]) for each in ranges},
                distributions=of_option,
                state=states.FAIL if failed else states.COMPLETE,
                value=None if failed else one.iqm,
            )
        )
    asked = [study.ask(of_option).params for _ in range(number)]
    return [{each.option: _heard(each, one[each.option]) for each in ranges} for one in asked]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise RunError(
            "--draw=tpe needs Optuna, which is not installed; make install EXTRA=search, or "
            "pip install optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, each: Range) -> Any:
    if each.kind == "choices":  # by their places, since Optuna knows no tuples
        return optuna.distributions.CategoricalDistribution(range(len(each.values)))
    numbers = optuna.distributions
    kind = numbers.IntDistribution if each.whole else numbers.FloatDistribution
    return kind(*each.values, log=each.kind == "log")


def _told(each: Range, value: Any) -> Any:
    return each.values.index(value) if each.kind == "choices" else value


def _heard(each: Range, value: Any) -> Any:
    return each.values[value] if each.kind == "choices" else value
