"""Rank control in the loops of others: Trainer, accelerate, Lightning train as a plain loop does, and resume."""

import copy

import accelerate
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import comera
from comera.loops.trainer import RankCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:lr_ranks is"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PLAN = comera.RankPlan(early_steps=4, late_steps=8, size_target=0.5, recovery=0.5)
STEPS, BATCH = 14, 4


def small_bert(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(**sizes, **dropout, vocab_size=100, max_position_embeddings=16))
    plan = {"*.word_embeddings": comera.TTM(ranks=8, order=3), "*.encoder.*": comera.TT(ranks=8, order=2)}
    model = comera.tensorize(model, plan)
    with torch.no_grad():
        for layer in comera.tensorized_layers(model):
            layer.diagonals.uniform_(0.2, 1.0)
    return model


def controlled(model, plan=PLAN):
    groups = comera.parameter_groups(model, lr_cores=1e-3, lr_ranks=9e-3, lr_dense=1e-3)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    return optimizer, comera.control_ranks(model, optimizer, plan)


TOKENS = torch.randint(1, 100, (STEPS * BATCH, 6), generator=torch.Generator().manual_seed(0))
EXAMPLES = [{"input_ids": row, "labels": row[0] % 2} for row in TOKENS]


def batches():
    return DataLoader(EXAMPLES, batch_size=BATCH)  # in order


def plain_loop():
    """The losses, the model and its control after a loop of torch alone."""
    model = small_bert()
    optimizer, control = controlled(model)
    scheduler, losses = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, STEPS), []
    for batch in batches():
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model, control


@pytest.fixture(scope="module")
def plain():
    return plain_loop()


def assert_same(model, control, plain):
    _, wanted, other = plain
    assert (control.step, control.stage) == (other.step, other.stage) == (STEPS, "over")
    assert comera.ranks_of(model) == comera.ranks_of(wanted)
    assert control.sizes() == other.sizes()
    assert control.sizes()["size"] <= control.sizes()["size_target"]
    parameters = dict(model.named_parameters())
    for name, parameter in wanted.named_parameters():
        assert torch.equal(parameters[name], parameter), name


def in_order(trainer):
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(EXAMPLES)
    return trainer


def trainer_of(model, folder, steps=STEPS, callbacks=None, **options):
    optimizer, control = controlled(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, STEPS)
    options = {"max_grad_norm": 0.0, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    callbacks = callbacks(control) if callbacks else None
    pair = (optimizer, scheduler)
    trainer = Trainer(model, arguments, train_dataset=EXAMPLES, optimizers=pair, callbacks=callbacks)
    return in_order(trainer), control


def test_the_trainer_trains_as_the_plain_loop_does(plain, tmp_path, capsys):
    model = small_bert()
    trainer, control = trainer_of(model, tmp_path, callbacks=lambda control: [RankCallback(control)])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in logged] == pytest.approx(plain[0], rel=1e-3)  # it rounds what it logs
    sizes = [entry["comera/size"] for entry in logged]
    assert sizes[-1] == control.sizes()["size"] < sizes[0]
    assert {"comera/ranks", "comera/parameters", "comera/size_target"} <= logged[-1].keys()
    assert "comera/size" in capsys.readouterr().out
    assert_same(model, control, plain)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 6, 10])  # in the early stage, after a truncation, after the target was met
def test_the_trainer_resumes_from_its_checkpoint(stop, plain, tmp_path):
    first, _ = trainer_of(small_bert(), tmp_path, save_strategy="steps", save_steps=stop)
    first.train()
    model = small_bert(seed=1)
    trainer, control = trainer_of(model, tmp_path / "other")
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
    assert_same(model, control, plain)


def test_the_trainer_accumulates_and_clips(tmp_path):
    """Half the batch twice is the batch, and what is clipped is the gradient of the task."""
    found = []
    for index, parts in enumerate((1, 2)):
        model = small_bert().double()
        trainer, control = trainer_of(model, tmp_path / str(index), max_grad_norm=1e6)
        trainer.args.gradient_accumulation_steps = trainer.accelerator.gradient_accumulation_steps = parts
        trainer._train_batch_size = trainer.args.per_device_train_batch_size = BATCH // parts
        trainer.train()
        assert control.step == STEPS
        found.append(model)
    assert comera.ranks_of(found[0]) == comera.ranks_of(found[1])
    for one, other in zip(found[0].parameters(), found[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("prepared_first", [False, True])
def test_accelerate_trains_and_resumes(prepared_first, plain, tmp_path):
    model = small_bert()
    accelerator = accelerate.Accelerator(cpu=True)
    if prepared_first:
        groups = comera.parameter_groups(model, lr_cores=1e-3, lr_ranks=9e-3, lr_dense=1e-3)
        optimizer = accelerator.prepare(torch.optim.AdamW(groups, weight_decay=0.0))
        control = comera.control_ranks(model, optimizer, PLAN)
        raw = optimizer.optimizer
    else:
        raw, control = controlled(model)
        optimizer = accelerator.prepare(raw)
    scheduler = torch.optim.lr_scheduler.LinearLR(raw, 1.0, 0.5, STEPS)
    model, loader = accelerator.prepare(model, batches())
    losses = []
    for step, batch in enumerate(loader):
        if step == 7:
            accelerator.save_state(str(tmp_path), safe_serialization=True)
            kept = copy.deepcopy(scheduler.state_dict())
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == plain[0]
    assert_same(model, control, plain)

    other = small_bert(seed=1)
    accelerator = accelerate.Accelerator(cpu=True)
    raw, control = controlled(other)
    scheduler = torch.optim.lr_scheduler.LinearLR(raw, 1.0, 0.5, STEPS)
    other, optimizer = accelerator.prepare(other, raw)
    accelerator.load_state(str(tmp_path))
    scheduler.load_state_dict(kept)
    for batch in list(batches())[7:]:
        accelerator.backward(other(**batch).loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert_same(other, control, plain)


@pytest.fixture
def lightning():
    """The package, which takes long to import and which one test needs."""
    import lightning

    return lightning


def lightning_module(lightning, seed=0):
    """As docs/loops.md has it: the optimizer is made with the model, before a checkpoint is loaded."""

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = small_bert(seed)
            self.optimizer, self.control = controlled(self.model)
            self.losses = []

        def training_step(self, batch):
            loss = self.model(**batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.5, STEPS)
            return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    return Lit()


def lightning_trainer(lightning, folder):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(folder, every_n_train_steps=7, save_top_k=-1)
    return lightning.Trainer(max_steps=STEPS, callbacks=[checkpoint], default_root_dir=folder, **quiet)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_and_resumes(lightning, plain, tmp_path):
    module = lightning_module(lightning)
    lightning_trainer(lightning, tmp_path).fit(module, batches())
    assert module.losses == plain[0]
    assert_same(module.model, module.control, plain)
    [checkpoint] = tmp_path.glob("*step=7.ckpt")
    resumed = lightning_module(lightning, seed=1)
    # Lightning counts batches from where it stopped, and takes them from the beginning.
    rest = DataLoader(2 * EXAMPLES[7 * BATCH :], batch_size=BATCH)
    lightning_trainer(lightning, tmp_path / "other").fit(resumed, rest, ckpt_path=str(checkpoint))
    assert resumed.losses == plain[0][7:]
    assert_same(resumed.model, resumed.control, plain)


@pytest.mark.slow
def test_ranks_are_not_cut_under_a_living_wrapper(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = small_bert()
        optimizer, control = controlled(model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        wrapped(**EXAMPLES[0] | {"input_ids": TOKENS[:1]}).loss.backward()
        with pytest.raises(ValueError, match=r"^control_ranks puts parameters of other shapes in place, and Distr"):
            optimizer.step()
        assert control.step == 0
        assert all(map(torch.equal, before, model.parameters()))
    finally:
        torch.distributed.destroy_process_group()
