"""Scores of several agents: interquartile means and intervals."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from jaxrl_scale.records.rows import Evaluation


def summarize(returns: np.ndarray, failed: Collection[int] = ()) -> Evaluation:
    """``evaluation`` of ``summary.json`` from returns ``[P, episodes]``.

    Of several members: ``iqm`` is the interquartile mean of their mean returns and ``ci95``
    its 95 % percentile bootstrap interval over members, as in
    https://arxiv.org/abs/2108.13264. Of one member the sample is its episodes, and ``ci95``
    that of ``mean``. Members that ``failed`` are left out and are ``None`` in ``per_seed``.
    """
    from scipy import stats

    per_seed = returns.mean(1, dtype=np.float64)
    alive = [m for m in range(len(returns)) if m not in failed and np.isfinite(per_seed[m])]
    result: Evaluation = {
        "mean": None,
        "iqm": None,
        "ci95": (None, None),
        "episodes": int(returns.shape[1]),
        "per_seed": [float(x) if m in alive else None for m, x in enumerate(per_seed)],
    }
    if not alive:
        return result

    def iqm(x: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(x, 0.25, axis=axis)

    several = len(returns) > 1
    sample = per_seed[alive] if several else returns[0].astype(np.float64)
    centre = iqm if several else np.mean
    low = high = float(centre(sample))
    if np.ptp(sample) > 0:
        interval = stats.bootstrap(
            (sample,), centre, n_resamples=2000, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    result["mean"], result["iqm"] = float(sample.mean()), float(iqm(sample))
    result["ci95"] = (low, high)
    return result
