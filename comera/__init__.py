"""Tensor-compressed layers for PyTorch with ranks that shrink during training (CoMERA, NeurIPS 2024).

>>> import torch, comera
>>> model = torch.nn.Sequential(torch.nn.Linear(768, 3072), torch.nn.GELU(), torch.nn.Linear(3072, 768))
>>> model = comera.tensorize(model, {"*": comera.TT(ranks=30)})
>>> sum(parameter.numel() for parameter in model.parameters())
61996
"""

from comera.adaptation.recompression import recompress
from comera.capture import CapturedStep, CaptureError, make_capturable
from comera.compatibility.version import __version__
from comera.formats.block_shapes import BTTShape, solve_blocks
from comera.formats.block_tensor_train import BTTLinear
from comera.formats.grouped import GroupedLinear
from comera.hugging_face import hook
from comera.hugging_face.dense_model import to_dense_model
from comera.hugging_face.pretrained import load_pretrained, save_pretrained
from comera.inspection.step_memory import StepMemory, step_memory
from comera.inspection.summary import ModelSummary, summary
from comera.layers import TiedTTMLinear, TTLinear, TTMEmbedding, TTMEmbeddingBag
from comera.loops.control import RankControl, RankPlan, control_ranks
from comera.loops.muon import Muon
from comera.modes import balanced_modes, padded_modes
from comera.objective import EarlyStage, LateStage, ModelSize, exact_size, full_size, tensorized_layers
from comera.protocol import OutOfReach
from comera.ratio.layer import LinearSolution, TableSolution, solve_modes, solve_table_modes
from comera.ratio.model import ModelSolution, solve_model
from comera.reachability import drop_unreachable
from comera.specs import BTT, TT, TTM, Grouped
from comera.tensorize import tensorize
from comera.training import parameter_groups
from comera.truncation import Cut, close_smallest, ranks_of, set_ranks, truncate

hook.register()

__all__ = [
    "BTT",
    "TT",
    "TTM",
    "BTTLinear",
    "BTTShape",
    "CaptureError",
    "CapturedStep",
    "Cut",
    "EarlyStage",
    "Grouped",
    "GroupedLinear",
    "LateStage",
    "LinearSolution",
    "ModelSize",
    "ModelSolution",
    "ModelSummary",
    "Muon",
    "OutOfReach",
    "RankControl",
    "RankPlan",
    "StepMemory",
    "TTLinear",
    "TTMEmbedding",
    "TTMEmbeddingBag",
    "TableSolution",
    "TiedTTMLinear",
    "__version__",
    "balanced_modes",
    "close_smallest",
    "control_ranks",
    "drop_unreachable",
    "exact_size",
    "full_size",
    "load_pretrained",
    "make_capturable",
    "padded_modes",
    "parameter_groups",
    "ranks_of",
    "recompress",
    "save_pretrained",
    "set_ranks",
    "solve_blocks",
    "solve_model",
    "solve_modes",
    "solve_table_modes",
    "step_memory",
    "summary",
    "tensorize",
    "tensorized_layers",
    "to_dense_model",
    "truncate",
]
