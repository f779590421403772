"""Modes and ranks as records hold them."""

import json

from torch import nn

from bench.measures.shapes import described_shape, tensorized_shapes
from comera import TTLinear, TTMEmbedding
from comera.tensor_train import TTMShape


def test_a_table_has_row_and_column_modes():
    shape = TTMShape(10, 6, (3, 4), (2, 3), 5)
    assert described_shape(shape) == {"row_modes": (3, 4), "column_modes": (2, 3), "ranks": (5,)}


def test_every_distinct_shape_is_there_once_in_the_order_of_the_model_and_can_be_written_as_json():
    def square():
        return TTLinear(4, 4, (2, 2), (2, 2), ranks=2)

    table = TTMEmbedding(10, 4, (3, 4), (2, 2), ranks=3)
    model = nn.Sequential(table, nn.Sequential(square(), nn.Tanh(), TTLinear(4, 4, (2, 2), (2, 2), 1)), square())
    assert json.loads(json.dumps(tensorized_shapes(model))) == [
        {"layers": 1, "row_modes": [3, 4], "column_modes": [2, 2], "ranks": [3]},
        {"layers": 2, "in_modes": [2, 2], "out_modes": [2, 2], "ranks": [2, 2, 2]},
        {"layers": 1, "in_modes": [2, 2], "out_modes": [2, 2], "ranks": [1, 1, 1]},
    ]


def test_truncation_shows_and_a_dense_model_has_none():
    layer = TTLinear(4, 4, (2, 2), (2, 2), ranks=2)
    layer.diagonals.data[0] = 0.0
    layer.truncate()
    assert [row["ranks"] for row in tensorized_shapes(layer)] == [(1, 2, 2)]
    assert tensorized_shapes(nn.Linear(4, 4)) == []
