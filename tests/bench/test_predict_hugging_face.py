"""A user's own Hugging Face configuration: predicted as the bench's own models are, or refused in one sentence."""

import pytest
import torch
from advised import saved
from small_cells import assert_refused, run_bench
from transformers import AutoModelForSequenceClassification

from bench.estimate.memory import trace_memory
from bench.estimate.work import predict
from bench.protocol import Data
from bench.protocol.methods import build, checked_settings
from bench.step.train_step import TrainStep
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings
from bench.workloads.hugging_face import HuggingFaceWorkload

#: Two blocks of each kind, by the fields of its configuration.
KINDS = {"bert": {"num_hidden_layers": 2}, "gpt2": {"n_layer": 2}, "llama": {"num_hidden_layers": 2}}


def small(folder, kind, **changes):
    return saved(folder, kind, **(KINDS[kind] | {"num_labels": 3, "architectures": None} | changes))


def predicted(workload, method="dense", batch_size=4, device="cpu", settings=None):
    return predict(workload, build(method, "", checked_settings(method, settings or {})), batch_size, "fp32", device, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_and_decoders_are_predicted_for_both_devices_again_and_again(kind, tmp_path):
    workload = HuggingFaceWorkload(small(tmp_path, kind), 32)
    for device in ("cpu", "cuda"):
        memory = predicted(workload, "comera", device=device).memory
        assert memory.parameter_count > 0
        assert memory.activations > 0
    assert type(torch.ones(1)) is torch.Tensor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_real_run_books_what_was_predicted(kind, tmp_path):
    workload = HuggingFaceWorkload(small(tmp_path, kind), 32)
    method = build("dense", "", checked_settings("dense", {}))
    model = method.adapt(workload.build(), workload.targets())
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    real = trace_memory(step, next(workload.batches("train", 4, 0, True)))
    assert real == predicted(workload).memory


def test_targets_are_the_table_and_the_linear_layers_but_for_the_class_scores(tmp_path):
    targets = HuggingFaceWorkload(small(tmp_path, "bert"), 32).targets()
    assert len(targets) == 1 + 2 * 6 + 1
    assert targets["bert.embeddings.word_embeddings"] == "embedding"
    assert targets["bert.pooler.dense"] == "classifier"
    assert "classifier" not in targets
    roberta = HuggingFaceWorkload(small(tmp_path, "bert", model_type="roberta"), 32).targets()
    assert roberta["classifier.dense"] == "classifier"
    assert "classifier.out_proj" not in roberta
    llama = HuggingFaceWorkload(small(tmp_path, "llama"), 32).targets()
    assert len(llama) == 1 + 2 * 7
    assert {llama[f"model.layers.0.{name}"] for name in ("self_attn.q_proj", "mlp.up_proj")} == {
        "attention",
        "feed_forward",
    }


def test_conv1d_is_built_as_a_linear_layer_of_the_same_function(tmp_path):
    workload = HuggingFaceWorkload(small(tmp_path, "gpt2"), 32)
    targets = workload.targets()
    assert len(targets) == 1 + 2 * 4
    assert targets["transformer.h.0.attn.c_attn"] == targets["transformer.h.1.attn.c_proj"] == "attention"
    assert targets["transformer.h.0.mlp.c_fc"] == targets["transformer.h.1.mlp.c_proj"] == "feed_forward"
    torch.manual_seed(0)
    built = workload.build().eval()
    torch.manual_seed(0)
    given = AutoModelForSequenceClassification.from_config(workload.config).eval()
    batch = next(workload.batches("train", 4, 0, True))
    torch.testing.assert_close(workload.loss(built, batch), workload.loss(given, batch), rtol=0, atol=1e-6)
    assert {name for name, _ in built.named_parameters()} == {name for name, _ in given.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bert_is_our_own_encoder_but_for_its_masks_and_segments(tmp_path, device):
    """To the byte, with all differences told. Without dropout before the classes, which ours does not have:

    * BERT spreads the mask over all queries, per layer; ours keeps one row for all of them and all layers, as float32;
    * BERT takes its segments from a buffer where ours gets them with the batch, as int64;
    * BERT has two buffers of its own, places and segments;
    * on a CPU torch's dropout keeps its mask as float32, ours as bits, which also come and go otherwise in backward;
    * BERT's pooler keeps all that the last block put out, ours a copy of the rows that it reads.
    """
    layers, batch, length, width, positions = 2, 16, 32, 64, 64
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 128, "vocab_size": 2000}
    dropouts = {"attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    theirs = HuggingFaceWorkload(small(tmp_path, "bert", **sizes, **dropouts), length)
    settings = EncoderSettings(
        layers=layers,
        width=width,
        heads=4,
        feed_forward=128,
        vocabulary=2000,
        classes=3,
        positions=positions,
        sequence_length=length,
    )
    ours = open_workload("encoder", settings, Data("synthetic"), check=False)
    masks, segments, buffers = 4 * batch * length * (layers * length - 1), 8 * batch * length, 2 * 8 * positions
    dropped = (1 + 2 * layers) * batch * length * width
    wider = dropped * 4 - dropped // 8 if device == "cpu" else 0
    rows = 4 * batch * (length - 1) * width
    own, other = (predicted(workload, "dense", batch, device) for workload in (ours, theirs))
    assert other.work.flops_per_step == own.work.flops_per_step
    assert other.work.saved_for_backward - own.work.saved_for_backward == masks - segments + wider + rows
    assert other.memory.parameter_count == own.memory.parameter_count
    assert other.memory.parameters - own.memory.parameters == buffers
    assert other.memory.gradients == own.memory.gradients
    assert other.memory.optimizer == own.memory.optimizer
    if device == "cuda":
        assert other.memory.temporaries == own.memory.temporaries
        assert other.memory.activations - own.memory.activations == masks - segments


EXPERTS = '{{"model_type": "{}", "{}": 4, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}}'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "config.json"),
        ("[" * 100_000, "config.json"),
        ("{}", "model_type"),
        ('{"model_type": "no_such"}', "no_such"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "wide"),
        ('{"model_type": "bert", "hidden_size": 48, "hidden_size": 64}', "hidden_size"),
        ('{"model_type": "bert", "num_hidden_layers": 0}', "num_hidden_layers"),
        ('{"model_type": "bert", "vocab_size": 1000000000000}', "vocab_size"),
        ('{"model_type": "gpt2", "n_layer": -3}', "n_layer"),
        ('{"model_type": "bert", "max_position_embeddings": 16}', "sequence_length"),
        (EXPERTS.format("mixtral", "num_local_experts"), "model.layers.0.mlp"),
    ],
)
def test_what_is_no_configuration_is_one_sentence(tmp_path, tmp_path_factory, content, named):
    path = tmp_path_factory.mktemp("model") / "config.json"
    if content is not None:
        path.write_text(content)
    ended = run_bench(tmp_path, "predict", "method=dense", f"model={path.parent}")
    assert_refused(ended, named, folder=tmp_path)


def test_a_batch_that_no_device_holds_is_refused(tmp_path, tmp_path_factory):
    path = small(tmp_path_factory.mktemp("model"), "bert")
    words = (f"model={path}", "sequence_length=16", "device=h100", "batch_size=100000000000")
    assert_refused(run_bench(tmp_path, "predict", "method=dense", *words), "batch_size", folder=tmp_path)
