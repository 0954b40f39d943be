"""Interquartile means, bootstrap intervals and who counts, by hand and against SciPy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from jaxrl_scale.records import statistics
from jaxrl_scale.types import Played

NORMAL = np.random.default_rng(3).normal(size=64)


# --- the interquartile mean and its interval ------------------------------------------------


def test_the_interquartile_mean_is_worked_by_hand():
    values = np.array([8.0, 1, 2, 3, 4, 5, 6, 700])  # sorted 1 2 | 3 4 5 6 | 8 700
    assert statistics.iqm(values) == 4.5
    assert statistics.iqm(np.array([1.0, 2.0, 6.0])) == 3.0  # a quarter of three is none
    np.testing.assert_array_equal(statistics.iqm(np.array([[0.0, 1, 3, 9], [5, 5, 5, 5]])), [2, 5])


@pytest.mark.parametrize("size", range(1, 13))
def test_the_interquartile_mean_is_scipys(size):
    values = NORMAL[:size]
    assert statistics.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12)


def test_the_interval_of_four_numbers_is_worked_by_hand():
    # The interquartile mean of four draws is the mean of the middle two. It is the least value
    # where at least three draws are: (4 * 3 + 1) / 256 = 5.1 % > 2.5 %; likewise the greatest.
    assert statistics.interval(np.array([3.0, 1.0, 10.0, 2.0])) == (1.0, 10.0)


def test_the_interval_agrees_with_every_resample_counted():
    values = np.array([0.0, 1.0, 4.0, 9.0, 16.0, 25.0])
    draws = np.array(list(itertools.product(values, repeat=6)))
    exact = np.percentile(stats.trim_mean(draws, 0.25, axis=1), (2.5, 97.5))
    np.testing.assert_allclose(statistics.interval(values), exact, atol=1)
    assert exact[0] > values.min()  # else the test could not tell an interval from a range
    assert exact[1] < values.max()


def test_the_interval_is_scipys_but_for_its_draws():
    reference = stats.bootstrap((NORMAL,), lambda x, axis: stats.trim_mean(x, 0.25, axis), rng=1)
    wanted = pytest.approx(reference.confidence_interval, abs=0.05)
    assert statistics.interval(NORMAL) == wanted


def test_intervals_of_few_numbers_are_as_narrow_as_is_said():
    """Of 400 samples of normal numbers; docs/runs.md has what 1,000 gave."""
    rng = np.random.default_rng(0)

    def held(size):
        found = [statistics.interval(sample) for sample in rng.normal(size=(400, size))]
        return np.mean([low <= 0 <= high for low, high in found])

    assert held(2) == pytest.approx(0.51, abs=0.07)
    assert held(3) == pytest.approx(0.74, abs=0.07)
    assert held(4) == pytest.approx(0.87, abs=0.06)
    assert held(statistics.FEW) == pytest.approx(0.93, abs=0.04)


def test_fewer_than_two_numbers_have_no_interval():
    assert statistics.interval(np.array([7.0])) == (None, None)
    found = statistics.difference([7.0], [5.0])
    assert found == {"difference": 2.0, "difference_ci95": None}
    assert statistics.interval(np.array([])) == (None, None)


def test_a_large_sample_is_drawn_in_parts_without_a_change(monkeypatch):
    whole = statistics.interval(NORMAL)
    monkeypatch.setattr(statistics, "_DRAWN_AT_ONCE", 1000)
    assert statistics.interval(NORMAL) == whole


# --- who counts -----------------------------------------------------------------------------


def test_failed_agents_are_left_out_and_one_without_a_number_leaves_none():
    assert statistics.score([1.0, np.nan, 5.0], failed=[1]) == 3.0
    assert statistics.score([1.0, np.nan, 5.0], failed=[0]) is None
    assert statistics.score([1.0, 2.0], failed=[0, 1]) is None
    assert statistics.score([np.inf, 2.0], failed={0: 7}) == 2.0  # the iteration of its failure


# --- differences ----------------------------------------------------------------------------


def test_differences_pair_equal_seeds():
    values = NORMAL[:32]
    same = statistics.difference(values, values)
    assert same == {"difference": 0.0, "difference_ci95": [0.0, 0.0]}
    moved = statistics.difference(values + 3, values[:31], pairs=False)
    low, high = moved["difference_ci95"]
    assert low < moved["difference"] < high
    # Of two independent samples the variances add: 1.4 times an interval of one.
    assert 1.2 < (high - low) / np.diff(statistics.interval(values))[0] < 1.65
    assert statistics.difference(values, values[:0], pairs=False)["difference"] is None


def test_a_pair_is_left_out_where_either_agent_failed():
    values = 100.0 * np.arange(8)
    nothing = {"difference": 0.0, "difference_ci95": [0.0, 0.0]}
    assert statistics.difference(values, values, failed=((0,), (7,))) == nothing
    apart = statistics.difference(values, values, failed=((0,), (7,)), pairs=False)
    assert apart["difference"] == 100  # of 100 ... 700 and 0 ... 600
    low, high = apart["difference_ci95"]
    assert low < 0 < high
    missing = np.where(values == 0, np.nan, values)
    assert statistics.difference(values, missing)["difference"] is None
    assert statistics.difference(values, missing, failed=((), (0,)))["difference"] == 0


# --- an evaluation --------------------------------------------------------------------------


def test_of_one_agent_the_sample_is_its_episodes():
    returns = np.random.default_rng(0).normal(100, 10, size=(1, 400))
    result = statistics.summarize(returns)
    low, high = result["ci95"]
    assert result["mean"] == pytest.approx(returns.mean())
    assert low < result["mean"] < high
    assert high - low == pytest.approx(2 * 1.96 * 10 / 20, rel=0.15)
    middle = np.sort(returns[0])[100:300]
    assert result["iqm"] == pytest.approx(middle.mean())
    assert (result["episodes"], result["per_agent"]) == (400, [pytest.approx(returns.mean())])
    assert result["per_agent_ci95"] == [result["ci95"]]
    assert statistics.summarize(returns) == result, "the bootstrap repeats itself"


def test_of_several_agents_the_sample_is_their_means():
    agents = np.array([0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 1000.0])
    returns = agents[:, None] + np.array([-50.0, 0.0, 50.0])
    result = statistics.summarize(returns)
    assert result["per_agent"] == agents.tolist()
    assert result["mean"] == agents.mean()
    assert result["iqm"] == 12.5  # of the middle four; the outliers do not count
    assert result["ci95"] == statistics.interval(agents)
    assert result["per_agent_ci95"][1] == statistics.summarize(returns[1:2])["ci95"]
    low, high = result["ci95"]
    assert 0 <= low < 12.5 < high <= 1000


def test_an_agent_that_failed_is_left_out_and_harms_no_statistic():
    good = np.random.default_rng(0).normal(size=(4, 16))
    returns = np.insert(good, 2, np.nan, axis=0)
    returns = np.insert(returns, 0, 1e9, axis=0)
    result = statistics.summarize(returns, failed=[0])
    left_out = [score is None for score in result.pop("per_agent")]
    assert left_out == [True, False, False, True, False, False]
    whole = statistics.summarize(good)
    left_out_too = [x == (None, None) for x in result.pop("per_agent_ci95")]
    assert left_out_too == left_out
    assert result == {name: whole[name] for name in result}
    nothing = statistics.summarize(returns[:1], failed=[0])
    assert (nothing["mean"], nothing["iqm"], nothing["ci95"]) == (None, None, (None, None))


def played(scale=1.0):
    """Three agents with two episodes each, of one and three steps."""
    lengths = np.array([[1, 3]] * 3)
    returns = scale * np.array([[1.0, 3.0], [2.0, 6.0], [np.nan, 0.0]])
    speed = np.array([[4.0, 8.0], [8.0, 16.0], [1.0, 1.0]])  # over the steps of an episode
    won = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])  # at its last one
    return Played(returns, lengths, {"env_end/won": won, "env/speed": speed})


def test_the_own_numbers_of_an_evaluation_are_means_over_all_steps_and_over_last_ones():
    """A mean over steps, not over the means of episodes: their lengths differ."""
    means = {name: x.tolist() for name, x in statistics.means(played()).items()}
    assert np.isnan(means.pop("return")[2])
    assert means == {"length": [2, 2, 2], "env/speed": [3, 6, 0.5], "env_end/won": [0.5, 1, 0]}


def test_an_evaluation_has_the_means_of_the_agents_that_count():
    result = statistics.evaluation(played(), failed=[0])
    assert {**result, **statistics.summarize(played().returns, failed=[0])} == result
    assert (result["mean"], result["length"]) == (4, 2)
    assert result["info"] == {"env/speed": 6, "env_end/won": 1}
    spoilt = played()
    spoilt.info["env/speed"][1, 0] = np.inf
    result = statistics.evaluation(spoilt, failed=[0])
    assert result["info"] == {"env/speed": None, "env_end/won": 1}
    nothing = statistics.evaluation(played(), failed=[0, 1])
    assert (nothing["length"], nothing["info"]["env/speed"]) == (None, None)


@pytest.mark.parametrize("returns", [np.full((1, 2), 5.0), np.full((3, 4), 5.0)])
def test_where_nothing_varies_the_interval_is_a_point(returns):
    result = statistics.summarize(returns)
    assert (result["mean"], result["iqm"], result["ci95"]) == (5.0, 5.0, (5.0, 5.0))


def test_the_standard_error_of_several_agents_is_that_of_their_means():
    """128 episodes of an agent are no 128 agents."""
    returns = np.repeat([[0.0], [100.0]], 128, axis=1)
    assert statistics.standard_error(returns) == 50.0  # 70.7 / sqrt(2)
    several = np.random.default_rng(0).normal(size=(5, 16)) + NORMAL[:5, None]
    wanted = stats.sem(several.mean(1))
    assert statistics.standard_error(several) == pytest.approx(wanted)


def test_the_standard_error_of_one_agent_is_that_over_its_episodes():
    assert statistics.standard_error(NORMAL[None]) == pytest.approx(stats.sem(NORMAL))
    assert statistics.standard_error(np.array([[3.0]])) is None


def test_groups_of_one_number_each_have_no_interval():
    assert statistics.pooled([np.array([1.0]), np.array([3.0])]) == (2.0, (None, None))
    assert statistics.pooled([np.array([1.0, 2.0]), np.array([3.0])])[1] != (None, None)
