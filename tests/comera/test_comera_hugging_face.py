"""A Hugging Face classifier, built from a configuration, goes through both stages and comes out smaller."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

import comera


def small_bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = BertConfig(**sizes, vocab_size=100, max_position_embeddings=16, hidden_dropout_prob=0.0)
    plan = {"*.word_embeddings": comera.TTM(ranks=8, order=3), "*.encoder.*": comera.TT(ranks=8, order=2)}
    return comera.tensorize(BertForSequenceClassification(config), plan)


def test_two_stages_shrink_a_classifier_that_still_learns():
    model = small_bert()
    assert len(comera.tensorized_layers(model)) == 1 + 2 * 6
    assert model.bert.embeddings.word_embeddings.padding_idx == 0
    full = comera.full_size(comera.tensorized_layers(model))
    groups = comera.parameter_groups(model, lr_cores=2e-3, lr_ranks=5e-3, lr_dense=2e-3)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    tokens = torch.randint(1, 100, (64, 6))
    labels = tokens[:, 1] % 2

    def train(objective, steps):
        for _ in range(steps):
            loss = model(tokens, labels=labels).loss
            optimizer.zero_grad()
            objective(loss, model).backward()
            optimizer.step()
        comera.truncate(model, optimizer)
        return loss.item()

    train(comera.EarlyStage(gamma=0.01), 150)
    early = comera.full_size(comera.tensorized_layers(model))
    # Of a small model every rank is a large share, so its size is priced lower.
    last = train(comera.LateStage(size_target=0.6, loss_weight=0.1, size_weight=0.1, rho=0.1), 450)
    late = comera.full_size(comera.tensorized_layers(model))
    assert late <= 0.6 * early <= 0.6 * full
    assert late > 0
    assert last < 0.5  # chance: 0.69
    assert all(
        state["exp_avg"].shape == parameter.shape for parameter, state in optimizer.state.items() if parameter.numel()
    )
    other = small_bert()
    comera.set_ranks(other, comera.ranks_of(model))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(tokens).logits, model.eval()(tokens).logits)
