"""Models of Hugging Face that are tensorized where they are built: tied, saved and loaded, and read as others are."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
)

import comera

BERT = BertConfig(
    hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=100, num_labels=2
)
GPT2 = GPT2Config(n_embd=48, n_layer=1, n_head=4, vocab_size=100, n_positions=16, bos_token_id=0, eos_token_id=0)


class MaskedLM(BertForMaskedLM):
    """As a model is made for ``from_pretrained``: tensorized where it is built, with the ranks that were saved."""

    def __init__(self, config):
        super().__init__(config)
        plan = {"*.word_embeddings": comera.TTM(ranks=8, order=3), "*.encoder.*": comera.TT(ranks=8, order=2)}
        comera.tensorize(self, plan)
        comera.set_ranks(self, getattr(config, "ranks", {}))


class CausalLM(GPT2LMHeadModel):
    def __init__(self, config):
        super().__init__(config)
        comera.tensorize(self, {"*.wte": comera.TTM(ranks=8, order=3), "*.h.*": comera.TT(ranks=8, order=2)})
        comera.set_ranks(self, getattr(config, "ranks", {}))


@pytest.mark.parametrize(("kind", "config"), [(MaskedLM, BERT), (CausalLM, GPT2)])
def test_a_tied_model_is_tied_again_saved_and_loaded(kind, config, tmp_path):
    model = kind(config).eval()
    tokens = torch.randint(1, 100, (2, 6))
    table, output = model.get_input_embeddings(), model.get_output_embeddings()
    before = model(tokens).logits
    model.tie_weights()
    assert model.get_output_embeddings() is output
    assert output.embedding is table
    assert torch.equal(model(tokens).logits, before)
    with torch.no_grad():
        table.diagonals[0] = 0.0
    comera.truncate(model)
    model.config.ranks = comera.ranks_of(model)
    model.save_pretrained(tmp_path)
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.get_output_embeddings().embedding is loaded.get_input_embeddings()
    assert comera.ranks_of(loaded) == comera.ranks_of(model)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in model.named_parameters()}


def test_the_trainer_decays_no_diagonals():
    model = MaskedLM(BERT)
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # the rule of its default optimizer
    diagonals = {id(layer.diagonals) for layer in comera.tensorized_layers(model)}
    assert diagonals
    names = {name for name, parameter in model.named_parameters() if id(parameter) in diagonals}
    assert len(names) == len(diagonals)
    assert not names & decayed
    assert {name for name, _ in model.named_parameters() if name.endswith("packed_cores")} <= decayed
