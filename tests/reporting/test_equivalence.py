"""The statistics of a verdict compared with scipy's tests, and in repetitions of an experiment whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from relm.reporting.equivalence import MeanDifference, Spread, measure_spread, pool_spreads

OURS, OTHERS = [1.9187, 1.8714, 1.9063], [1.8857, 1.8735, 1.9001, 1.8792]


def spread_of(values: list[float]) -> Spread:
    spread = measure_spread(values)
    assert spread is not None
    return spread


def test_the_interval_is_that_of_scipys_test_with_pooled_variances() -> None:
    """Our seeds against the mean of other runs, from whose spread the noise is known as well."""
    pooled = pool_spreads([spread_of(OURS), spread_of(OTHERS)])
    assert pooled is not None
    expected = stats.ttest_ind(OURS, OTHERS, equal_var=True).confidence_interval(0.95)
    comparison = MeanDifference(pooled, len(OURS), len(OTHERS))
    difference = np.mean(OURS) - np.mean(OTHERS)
    assert pooled.degrees_of_freedom == 5
    assert [difference - comparison.half_width, difference + comparison.half_width] == pytest.approx(list(expected))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_single_published_run_adds_its_own_noise_and_no_degree_of_freedom(seeds: int) -> None:
    """The ends of the interval are the differences whose p-value is 5 % in scipy's test, with the published run as a sample."""
    values = [*OURS, 1.8912, 1.9234][:seeds]
    comparison = MeanDifference(spread_of(values), seeds, 1)
    mean, spread = float(np.mean(values)), float(stats.tstd(values))
    for end in (mean - comparison.half_width, mean + comparison.half_width):
        found = stats.ttest_ind_from_stats(mean, spread, seeds, end, 0.0, 1, equal_var=True)
        assert found.pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(("seeds", "published_runs"), [(2, 1), (3, 1), (3, 4), (10, 2)])
def test_the_rates_of_error_and_the_power_are_those_stated(seeds: int, published_runs: int) -> None:
    """100,000 repetitions: at the tolerance itself each verdict comes in 2.5 %, at the noticeable difference in 80 %."""
    random, tolerance, repetitions = np.random.default_rng(0), 0.05, 100_000
    truth = MeanDifference(Spread(0.0245, seeds - 1), seeds, published_runs)
    half_of_one = MeanDifference(Spread(1.0, seeds - 1), seeds, published_runs).half_width
    runs = random.normal(0, 0.0245, (repetitions, seeds))
    half = half_of_one * runs.std(axis=1, ddof=1)
    error = runs.mean(axis=1) - random.normal(0, 0.0245 / np.sqrt(published_runs), repetitions)
    noticed = {true: np.mean(true + error - half > tolerance) for true in (tolerance, truth.noticeable_difference(tolerance))}
    assert list(noticed.values()) == pytest.approx([0.025, 0.80], abs=0.005)
    equivalent = np.mean((tolerance + error + half <= tolerance) & (tolerance + error - half >= -tolerance))
    assert equivalent < 0.026


@pytest.mark.parametrize("difference", [0.0, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("seeds", [1, 3])
def test_as_many_seeds_as_promised_do_decide_and_one_fewer_does_not(difference: float, seeds: int) -> None:
    tolerance, spread, published_runs = 0.1, Spread(0.03, 2), 2
    promised = MeanDifference(spread, seeds, published_runs).deciding_seeds(tolerance, difference)

    def decides(count: int) -> bool:
        half = MeanDifference(Spread(0.03, 2 + count - seeds), count, published_runs).half_width
        return bool(abs(difference) + half <= tolerance or abs(difference) - half > tolerance)

    assert promised == next((count for count in range(seeds + 1, 100) if decides(count)), None)


def test_no_number_of_seeds_outweighs_the_noise_of_the_published_mean() -> None:
    # 1.96 * 0.03 / sqrt(2) = 0.04158
    comparison = MeanDifference(Spread(0.03, 2), 3, 2)
    assert comparison.deciding_seeds(0.1, 0.0585) is None
    assert comparison.deciding_seeds(0.1, 0.0583) is not None
