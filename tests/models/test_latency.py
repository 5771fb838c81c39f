"""Latencies: the statistics of measured times."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.models.measurement import Latencies

times = st.lists(st.integers(0, 10**12), min_size=1, max_size=50)


@given(times)
def test_statistics_are_in_seconds_and_in_order(nanoseconds: list[int]) -> None:
    latencies = Latencies.of(nanoseconds)
    assert latencies.count == len(nanoseconds)
    assert latencies.median == pytest.approx(statistics.median(nanoseconds) / 1e9)
    assert latencies.mean == pytest.approx(statistics.fmean(nanoseconds) / 1e9)
    assert latencies.total == pytest.approx(sum(nanoseconds) / 1e9)
    ordered = [latencies.minimum, *map(latencies.percentile, (50, 90, 99, 99.9)), latencies.maximum]
    assert all(low <= high * (1 + 1e-12) for low, high in itertools.pairwise(ordered))


def test_a_percentile_is_numpys() -> None:
    latencies = Latencies.of(range(1001))
    assert latencies.percentile(99.9) == pytest.approx(999e-9)
    assert latencies.as_dict()["p99_9_seconds"] == pytest.approx(999e-9)
    assert Latencies.of([]).as_dict() == {"count": 0}


@given(times, st.integers(1, 20))
def test_a_histogram_counts_every_time_once(nanoseconds: list[int], bins: int) -> None:
    histogram = Latencies.of(nanoseconds).histogram(bins)
    assert len(histogram.edges) == len(histogram.counts) + 1 == bins + 1
    assert sum(histogram.counts) + histogram.longer == len(nanoseconds)
    longer = sum(each / 1e9 > histogram.edges[-1] * (1 + 1e-12) for each in nanoseconds)
    assert histogram.longer == longer


def test_the_bins_of_a_histogram_end_at_the_99th_percentile() -> None:
    histogram = Latencies.of([*range(0, 1000, 10), 10**9]).histogram(9)
    assert histogram.edges[0] == 0
    assert histogram.edges[-1] == pytest.approx(990e-9)
    assert (histogram.counts, histogram.longer) == ((11,) * 8 + (12,), 1)


def test_the_times_of_a_round_and_of_a_span() -> None:
    latencies = Latencies.of([1, 2, 3, 40], [0, 10, 20, 30], [0, 0, 1, 1])
    assert latencies.of_round(1).nanoseconds.tolist() == [3, 40]
    assert latencies.of_round(1).begins.tolist() == [20, 30]
    spans = latencies.over_time(2)
    np.testing.assert_allclose(spans, [(1.5e-9, 2e-9), (21.5e-9, 40e-9)])
    assert len(latencies.over_time(100)) == 4
