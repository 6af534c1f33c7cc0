"""The hash of a scenario: of its content, not of how numbers were written."""

from __future__ import annotations

import json

import yaml

from foretrain.cluster import Cluster
from foretrain.scenario import plain


def test_equal_numbers_are_equal_content():
    assert plain(2.0) == plain(2)
    assert plain((1e12, 0.5)) == plain((10**12, 0.5))
    assert plain(2.0**60) == plain(2**60)
    assert plain(-0.0) == plain(0)


def test_unlike_numbers_are_unlike_content():
    nearest = 2.0 + 2.0**-51
    values = [2, nearest, 2.5, float("inf"), True, "2", None, 2**53 + 1, float(2**53)]
    assert len({json.dumps(plain(value)) for value in values}) == len(values)


def test_a_cluster_that_was_written_and_read_has_the_same_content():
    cluster = Cluster.of("2 x dgx-a100-80gb")
    again = Cluster.from_dict(yaml.safe_load(yaml.safe_dump(cluster.to_dict())))
    assert again == cluster
    assert plain(again) == plain(cluster)
