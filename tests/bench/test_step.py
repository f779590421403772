"""The train step: precisions and their reasons, the order of its parts, what it leaves to the method."""

import torch
from tiny import TinyMethod, TinyWorkload

from bench.step.train_step import TrainStep


def a_step(precision="fp32", device="cpu", method=None, loss=None):
    torch.manual_seed(0)
    workload, method = TinyWorkload(dropout=0.0), method or TinyMethod()
    model = method.adapt(workload.build(), workload.targets())
    return TrainStep(model, method, method.optimizer(model), loss or workload.loss, precision, device)


def a_batch(seed=0):
    return next(TinyWorkload().batches("train", 8, seed, True))


def test_after_step_is_told_the_step_and_its_answer_is_kept():
    class Pruning(TinyMethod):
        def after_step(self, model, optimizer, step):
            super().after_step(model, optimizer, step)
            return "shapes" if step == 1 else "nothing"

    method = Pruning()
    step = a_step(method=method)
    changes = []
    for _ in range(3):
        step(a_batch())
        changes.append(step.last_change)
    assert method.after_steps == [0, 1, 2]
    assert changes == ["nothing", "shapes", "nothing"]
    assert step.number == 3


def test_the_halves_are_the_whole():
    whole, halves = a_step(), a_step()
    for seed in range(3):
        expected = whole(a_batch(seed))
        loss = halves.forward_backward(a_batch(seed))
        halves.update()
        assert torch.equal(loss, expected)
    for one, other in zip(whole.model.parameters(), halves.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_gradient_is_that_of_the_objective_and_the_loss_that_of_the_task():
    class Doubled(TinyMethod):
        def objective(self, task_loss, model):  # noqa: ARG002
            return 2 * task_loss

    plain, doubled = a_step(), a_step(method=Doubled())
    assert torch.equal(plain.forward_backward(a_batch()), doubled.forward_backward(a_batch()))
    for one, other in zip(plain.model.parameters(), doubled.model.parameters(), strict=True):
        torch.testing.assert_close(2 * one.grad, other.grad)


def test_gradients_start_fresh_every_step():
    step = a_step()
    step.forward_backward(a_batch())
    once = [p.grad.clone() for p in step.model.parameters()]
    step.forward_backward(a_batch())
    for p, expected in zip(step.model.parameters(), once, strict=True):
        assert torch.equal(p.grad, expected)


def test_bf16_is_autocast_over_the_forward_alone():
    seen = []
    step = a_step("bf16")
    step.model.blocks[0].first.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    step.model.blocks[0].first.register_full_backward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    step(a_batch())
    assert seen == [torch.bfloat16, False]
    assert {p.dtype for p in step.model.parameters()} == {p.grad.dtype for p in step.model.parameters()}
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}


def test_tf32_holds_for_the_step_and_not_beyond():
    seen = []

    class Watching(TinyMethod):
        def after_step(self, model, optimizer, step):  # noqa: ARG002
            seen.append(torch.get_float32_matmul_precision())
            return "nothing"

    def loss(model, batch):
        seen.append(torch.get_float32_matmul_precision())
        return TinyWorkload().loss(model, batch)

    before = torch.get_float32_matmul_precision()
    a_step("tf32", "cuda", Watching(), loss=loss)(a_batch())
    assert seen == ["high", "high"]
    assert torch.get_float32_matmul_precision() == before


def test_the_phase_tells_where_the_step_is():
    phases = []

    class Watching(TinyMethod):
        def after_step(self, model, optimizer, step):  # noqa: ARG002
            phases.append(the_step.phase)
            return "nothing"

    the_step = a_step(method=Watching())
    the_step.model.classes.register_forward_hook(lambda *_: phases.append(the_step.phase))
    the_step.model.classes.register_full_backward_hook(lambda *_: phases.append(the_step.phase))
    assert the_step.phase == "idle"
    the_step(a_batch())
    assert phases == ["forward", "backward", "update"]
    assert the_step.phase == "idle"
