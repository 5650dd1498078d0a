"""Batches of any size against a plain loop on the model in one piece."""

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pipec
from pipec.cluster.cluster import parse_cluster
from pipec.compiler.driver import default_passes, make_plan
from pipec.errors import PipecError, PlanError
from pipec.frontends.torch_module import from_module
from pipec.pipeline.pipeline import Pipeline
from pipec.plan.model import Plan
from pipec.runtime.settings import OnNan

LOSS = nn.functional.cross_entropy
Batch = dict[str, Tensor] | list[dict[str, Tensor]]


class Tagger(nn.Module):
    """A label per token; in evaluation without dropout, and with the statistics of a norm."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 16)
        layers = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.Tanh())]
        self.body = nn.Sequential(*layers, nn.Dropout(dropout))
        self.head = nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(self.embedding(tokens)))
        return found.transpose(1, 2)


def plan_of(model: nn.Module, schedule: str, loss: object = LOSS) -> Plan:
    tokens = torch.zeros(4, 8, dtype=torch.long)
    graph = from_module(model, {"tokens": tokens}, (loss, tokens)).graph
    passes = default_passes(schedule=schedule, microbatches=4)
    return make_plan(graph, parse_cluster("2xh100"), passes=passes)


def sgd(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def texts(*sizes: tuple[int, int]) -> list[dict[str, Tensor]]:
    """Batches of (rows, length), a third of whose targets do not count."""
    g = torch.Generator().manual_seed(1)
    found = []
    for rows, length in sizes:
        tokens, target = (torch.randint(0, 11, (rows, length), generator=g) for _ in range(2))
        target[torch.rand(rows, length, generator=g) < 0.3] = -100
        found.append({"tokens": tokens, "target": target})
    return found


def batches() -> list[dict[str, Tensor]]:
    """Full, short in the last microbatch, short by whole microbatches, shorter and longer rows."""
    found = texts((16, 8), (13, 8), (3, 8), (16, 5), (7, 64))
    found[0]["target"][4:8] = -100  # a microbatch without any valid target
    return found


def buckets() -> list[dict[str, Tensor]]:
    """The microbatches of one batch, each of a length of its own."""
    return texts((4, 64), (4, 8), (4, 5), (2, 8))


def parts_of(batch: Batch) -> list[dict[str, Tensor]]:
    """The microbatches of a batch, of four rows at most."""
    if isinstance(batch, list):
        return batch
    begins = range(0, len(batch["tokens"]), 4)
    return [{n: t[b : b + 4] for n, t in batch.items()} for b in begins]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Over all valid targets of a batch, computed at once."""
    parts = batch if isinstance(batch, list) else [batch]
    scores = [model(p["tokens"]).transpose(1, 2).reshape(-1, 11) for p in parts]
    return LOSS(torch.cat(scores), torch.cat([p["target"].reshape(-1) for p in parts]))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1"])
def test_ragged_batches_train_as_one_process_does(schedule: str) -> None:
    model, plain = Tagger(), Tagger()
    steps = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    with Pipeline(plan_of(model, schedule), optimizer=sgd, model=model, loss=LOSS) as pipeline:
        given: list[Batch] = [*batches(), buckets()]
        for batch in given:
            found = pipeline.step(batch)
            steps.zero_grad()
            loss = mean_loss(plain, batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(plain.parameters(), float("inf"))
            steps.step()
            assert found.loss == pytest.approx(loss.item(), rel=1e-6)
            assert found.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
        weights = pipeline.state_dict()
    assert weights is not None
    for name, want in plain.state_dict().items():
        torch.testing.assert_close(weights[name], want, rtol=1e-6, atol=1e-6)


def test_what_another_shape_saves_reaches_the_device_of_its_backward() -> None:
    """Of one row torch transposes nothing, and so writes and saves other nodes."""
    torch.manual_seed(0)
    mean = lambda y: y.square().mean()  # noqa: E731
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
    model, x, found = nn.Sequential(*layers), torch.randn(12, 5, 8), []
    for schedule in ("pipefb{saved=host}", "pipefb{saved=direct}"):
        plan = pipec.compile(
            model, x[:4], "4xcpu", loss=mean, schedule=schedule, stages=2, microbatches=3,
            autocast="bfloat16",
        )  # fmt: skip
        with Pipeline(plan, optimizer=sgd, model=model, loss=mean) as pipeline:
            for rows in (12, 9, 12):
                pipeline.step({"input": x[:rows]})
            pipeline.drain()
            found.append(pipeline.state_dict() or {})
    host, direct = found
    assert all(torch.equal(host[n], w) for n, w in direct.items())


@pytest.mark.parametrize("schedule", ["pipedream", "pipemare"])
def test_tensors_may_be_filled_anew_while_microbatches_are_under_way(schedule: str) -> None:
    model, found = Tagger(), []
    for reused in (False, True):
        filled = {n: t.clone() for n, t in batches()[0].items()}
        with Pipeline(plan_of(model, schedule), optimizer=sgd) as pipeline:
            for batch in texts((16, 8), (16, 8), (16, 8)):
                for name, value in batch.items():
                    filled[name].copy_(value)
                pipeline.step(filled if reused else batch)
            filled["target"].zero_()
            pipeline.drain()
            found.append(pipeline.state_dict() or {})
    fresh, again = found
    assert all(torch.equal(again[n], w) for n, w in fresh.items())


def test_pipedream_makes_no_update_for_microbatches_that_are_not_there() -> None:
    """With one stage PipeDream is plain SGD, one update per microbatch that holds rows."""
    model, plain = Tagger(), Tagger()
    tokens = torch.zeros(4, 8, dtype=torch.long)
    graph = from_module(model, {"tokens": tokens}, (LOSS, tokens)).graph
    passes = default_passes(stages=1, schedule="pipedream", microbatches=4)
    plan = make_plan(graph, parse_cluster("1xh100"), passes=passes)
    steps, batch = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), batches()[1]
    with Pipeline(plan, optimizer=sgd, model=model, loss=LOSS) as pipeline:
        for rows in (slice(0, 13), slice(0, 6)):
            part = {n: t[rows] for n, t in batch.items()}
            pipeline.step(part)
            for begin in range(0, len(part["tokens"]), 4):
                mine = {n: t[begin : begin + 4] for n, t in part.items()}
                steps.zero_grad()
                LOSS(plain(mine["tokens"]), mine["target"]).backward()
                steps.step()
        weights = pipeline.state_dict()
    assert weights is not None
    for name, want in plain.state_dict().items():
        torch.testing.assert_close(weights[name], want, rtol=1e-6, atol=1e-6)


def test_evaluation_is_without_dropout_on_the_weights_of_now() -> None:
    model = Tagger(dropout=0.5)
    with Pipeline(plan_of(model, "1f1b"), optimizer=sgd, model=model, loss=LOSS) as pipeline:
        pipeline.step(batches()[0])
        found = pipeline.evaluate(batches(), outputs=False)
        some = pipeline.evaluate([batches()[1]], outputs=True)
        weights = pipeline.state_dict()
    assert weights is not None
    plain = Tagger().eval()
    plain.load_state_dict(weights)
    with torch.no_grad():
        want = mean_loss(plain, batches())
        outputs = plain(batches()[1]["tokens"])
    assert found.loss == pytest.approx(want.item(), rel=1e-6)
    torch.testing.assert_close(some.outputs["output"], outputs)


def test_a_stage_may_have_nothing_to_evaluate() -> None:
    """Between a layer and the loss there is dropout alone: three units, three stages."""
    model = nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.5))
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    graph = from_module(model, x[:4], (LOSS, y[:4])).graph
    passes = default_passes(schedule="1f1b", microbatches=4)
    plan = make_plan(graph, parse_cluster("3xh100"), passes=passes)
    with Pipeline(plan, optimizer=sgd, model=model, loss=LOSS) as pipeline:
        pipeline.step([x, y])
        found = pipeline.evaluate([[x, y], [x[:6], y[:6]]], outputs=True)
        weights = pipeline.state_dict()
    assert weights is not None
    model.load_state_dict(weights)
    want = model.eval()(torch.cat([x, x[:6]]))
    torch.testing.assert_close(found.outputs["output"], want)
    assert found.loss == pytest.approx(LOSS(want, torch.cat([y, y[:6]])).item(), rel=1e-6)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target[:, None, :].float()) ** 2).mean()


def test_a_loss_that_counts_nothing_is_a_mean_over_rows() -> None:
    model, plain = Tagger(), Tagger()
    plan = plan_of(model, "1f1b", squared)
    batch = {"tokens": batches()[1]["tokens"], "target": batches()[1]["tokens"]}
    with Pipeline(plan, optimizer=sgd, model=model, loss=squared) as pipeline:
        found = pipeline.step(batch)
    assert found.loss == pytest.approx(squared(plain(batch["tokens"]), batch["target"]).item())


def masked(output: Tensor, target: Tensor) -> Tensor:
    """A mean over valid targets that is no op of torch's."""
    valid = target != -100
    return (LOSS(output, target.clamp(0), reduction="none") * valid).sum() / valid.sum()


def bounded(output: Tensor, target: Tensor) -> Tensor:
    """A sum over valid targets, divided by their number, which is at least one."""
    count = (target != -100).float().sum().clamp(min=1)
    return LOSS(output, target, reduction="sum") / count


def halves(output: Tensor, target: Tensor) -> Tensor:
    """Two means over the same targets."""
    return LOSS(output, target) / 2 + 0.5 * masked(output, target)


def divided(output: Tensor, target: Tensor) -> Tensor:
    """A mean over all targets, written in a way of its own."""
    return LOSS(output, target.clamp(0), reduction="sum") / target.numel()


@pytest.mark.parametrize("loss", [masked, bounded, halves, divided])
def test_a_mean_that_is_no_op_of_torchs_counts_its_targets(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Also where a whole microbatch has none."""
    model, plain = Tagger(), Tagger()
    batch = {n: t.clone() for n, t in batches()[1].items()}
    if loss is not divided:
        batch["target"][4:8] = -100
    steps = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    want = loss(plain(batch["tokens"]), batch["target"])
    want.backward()
    steps.step()
    with Pipeline(plan_of(model, "1f1b", loss), optimizer=sgd, model=model, loss=loss) as pipeline:
        assert pipeline.step(batch).loss == pytest.approx(want.item(), rel=1e-6)
        weights = pipeline.state_dict()
    assert weights is not None
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-6)


def uneven(output: Tensor, target: Tensor) -> Tensor:
    """Means over two sets of targets: the valid ones, and all."""
    return LOSS(output, target) + 0.1 * output.logsumexp(1).square().mean()


def test_means_over_different_targets_are_refused_where_no_weight_fits() -> None:
    model, batch = Tagger(), batches()[1]
    plan = plan_of(model, "1f1b", uneven)
    with Pipeline(plan, optimizer=sgd, model=model, loss=uneven) as pipeline:
        even = {"tokens": batch["tokens"], "target": batch["tokens"]}
        want = uneven(Tagger()(even["tokens"]), even["target"]).item()
        assert pipeline.step(even).loss == pytest.approx(want, rel=1e-6)
        with pytest.raises(PlanError, match="means over different targets"):
            pipeline.step(batch)
    with Pipeline(
        plan, optimizer=sgd, model=model, loss=uneven,
        weight=lambda inputs: float((inputs["target"] != -100).sum()),
    ) as pipeline:  # fmt: skip
        pipeline.step(batch)


def test_a_hook_may_keep_a_moving_average() -> None:
    model, plain, kept = Tagger(), Tagger(), dict[str, Tensor]()
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.8))

    def follow(pipeline: Pipeline) -> None:
        for name, w in pipeline.named_parameters():
            kept[name] = 0.8 * kept[name] + 0.2 * w if name in kept else w.clone()

    steps = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    with Pipeline(plan_of(model, "1f1b"), optimizer=sgd, hooks=[follow]) as pipeline:
        for batch in texts((16, 8), (16, 8), (16, 8)):
            pipeline.step(batch)
            steps.zero_grad()
            mean_loss(plain, batch).backward()
            steps.step()
            average.update_parameters(plain)
    for name, want in average.module.named_parameters():
        torch.testing.assert_close(kept[name], want.detach(), rtol=1e-6, atol=1e-6)


def test_what_is_not_finite_stops_or_is_skipped_before_the_update() -> None:
    model = Tagger()
    plan, batch = plan_of(model, "1f1b"), batches()[0]
    with torch.no_grad():
        bad = {n: t.clone() for n, t in model.state_dict().items()}
        bad["head.weight"][0, 0] = torch.nan
    with Pipeline(plan, optimizer=sgd, weights=bad, on_nan="skip") as pipeline:
        assert pipeline.step(batch).skipped
        weights = pipeline.state_dict()
        assert weights is not None
        assert all(torch.equal(w, bad[n]) for n, w in weights.items() if n != "head.weight")
    with Pipeline(plan, optimizer=sgd, weights=bad) as pipeline:
        with pytest.raises(PlanError, match="weights were not updated"):
            pipeline.step(batch)
        weights = pipeline.state_dict()
        assert weights is not None
        assert torch.equal(weights["body.0.weight"], bad["body.0.weight"])


def test_weights_come_from_shards_one_by_one(tmp_path: Path) -> None:
    model = Tagger()
    plan, state = plan_of(model, "1f1b"), model.state_dict()
    for k, part in enumerate([sorted(state)[k : k + 3] for k in range(0, len(state), 3)]):
        save_file({n: state[n] + 1 for n in part}, tmp_path / f"{k}.safetensors")
    with Pipeline(plan, optimizer=sgd, weights=tmp_path) as pipeline:
        weights = pipeline.state_dict()
        assert weights is not None
        assert all(torch.equal(weights[n], w + 1) for n, w in state.items())
        pipeline.load_state_dict(state)
        again = pipeline.state_dict()
        assert again is not None
        assert all(torch.equal(again[n], w) for n, w in state.items())


BAD_WEIGHTS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "another shape": lambda s: {**s, "head.bias": torch.zeros(1)},
    "another dtype": lambda s: {**s, "head.bias": torch.zeros(11, dtype=torch.float64)},
    "one is missing": lambda s: {n: t for n, t in s.items() if n != "head.bias"},
    "one is unknown": lambda s: {**s, "heads.bias": torch.zeros(11)},
    "one is sparse": lambda s: {**s, "head.bias": s["head.bias"].to_sparse()},
    "one is no tensor": lambda s: {**s, "head.bias": [0.0] * 11},  # type: ignore[dict-item]
    "no mapping": lambda s: list(s.values()),  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_weights_of_another_model_are_refused(name: str) -> None:
    model = Tagger()
    plan, bad = plan_of(model, "1f1b"), BAD_WEIGHTS[name](model.state_dict())
    with pytest.raises(PipecError):
        Pipeline(plan, optimizer=sgd, weights=bad)
    with Pipeline(plan, optimizer=sgd) as pipeline, pytest.raises(PlanError):
        pipeline.load_state_dict(bad)


def test_both_names_of_a_shared_weight_are_given_alike() -> None:
    model = Tagger()
    model.body[2].weight = model.body[0].weight
    plan = plan_of(model, "1f1b")
    with Pipeline(plan, optimizer=sgd) as pipeline:
        weights = pipeline.state_dict() or {}
        pipeline.load_state_dict(weights)
        odd = {**weights, "body.2.weight": weights["body.2.weight"] + 1}
        with pytest.raises(PlanError, match=r"body\.2\.weight"):
            pipeline.load_state_dict(odd)
    assert odd.keys() == model.state_dict().keys()


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model = Tagger()
    with pytest.raises(PlanError, match="not one of the stage's parameters"):
        Pipeline(plan_of(model, "1f1b"), optimizer=lambda _: sgd(list(model.named_parameters())))


BAD_BATCHES: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "too many rows": lambda b: {n: torch.cat([t, t]) for n, t in b.items()},
    "an input is missing": lambda b: {"tokens": b["tokens"]},
    "an unknown input": lambda b: {**b, "mask": b["tokens"]},
    "rows differ": lambda b: {**b, "target": b["target"][:3]},
    "no valid target": lambda b: {**b, "target": torch.full_like(b["target"], -100)},
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_batches_that_do_not_fit_are_refused(name: str) -> None:
    model = copy.deepcopy(Tagger())
    with (
        Pipeline(plan_of(model, "1f1b"), optimizer=sgd, model=model, loss=LOSS) as pipeline,
        pytest.raises(PlanError),
    ):
        pipeline.step(BAD_BATCHES[name](batches()[0]))


def _square(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def _layers(*kinds: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *[kind() for kind in kinds], nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (_layers(nn.Tanh), _square),
        (nn.Sequential(*_layers(nn.ReLU), nn.Linear(8, 8)), _square),
        (_layers(nn.ReLU), lambda y: y.abs().mean()),
        (_layers(nn.ReLU), lambda y: 2 * y.square().mean()),
        (_layers(lambda: nn.Hardtanh(0.0, 6.0)), _square),
    ],
    ids=["operation", "layer", "loss", "factor", "constant"],
)
def test_another_model_or_loss_than_the_plans_is_refused(
    model: nn.Module, loss: Callable[..., Tensor]
) -> None:
    x, own = torch.randn(4, 8), _layers(nn.ReLU)
    plan = pipec.compile(own, x, "2xcpu", loss=_square, schedule="1f1b", microbatches=2)
    for given, of, refused in ((own, _square, False), (model, loss, True)):
        with pipec.Pipeline(plan, optimizer=sgd, model=given, loss=of) as pipeline:
            pipeline.step(torch.cat([x, x]))
            told = r"not the one that was compiled|another"
            with pytest.raises(PlanError, match=told) if refused else nullcontext():
                pipeline.step(torch.cat([x, x[:2]]))
            with pytest.raises(PlanError, match=told) if refused else nullcontext():
                pipeline.evaluate([x])


def test_inference_takes_a_short_batch() -> None:
    model, x = _layers(nn.ReLU), torch.randn(10, 8)
    plan = pipec.compile(model, x[:4], "2xcpu", schedule="inference", microbatches=4)
    with pipec.Pipeline(plan, model=model) as pipeline:
        found = pipeline.step(x).outputs["output"]
    assert torch.allclose(found, model(x))
    with pytest.raises(PlanError, match="no effect"):
        pipec.Pipeline(plan, model=model, clip=1.0)


def test_rows_are_those_of_the_batch_and_not_of_a_table() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, place: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.b(self.a(x + place))
            return y

    torch.manual_seed(0)
    model, place, x = Placed(), torch.randn(1, 8), torch.randn(6, 8)
    plan = pipec.compile(
        model, (place, x[:4]), "2xcpu", loss=_square, schedule="1f1b", microbatches=2
    )
    want = float(_square(model(place, x)).detach())
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=_square) as pipeline:
        assert pipeline.step({"place": place, "x": x}).loss == pytest.approx(want, rel=1e-6)
        with pytest.raises(PlanError, match="1 to 8"):
            pipeline.step({"place": place, "x": torch.randn(80, 8)})


def test_what_is_no_batch_and_no_directory_is_told(tmp_path: Path) -> None:
    x, model = torch.randn(4, 8), _layers(nn.ReLU)
    plan = pipec.compile(model, x, "2xcpu", loss=_square, schedule="1f1b", microbatches=2)
    (tmp_path / "file").touch()
    with pipec.Pipeline(plan, optimizer=sgd, model=model, loss=_square) as pipeline:
        for call, words in (
            (lambda: pipeline.evaluate(x), r"\[batch\]"),
            (lambda: pipeline.evaluate({"input": x}), r"\[batch\]"),  # type: ignore[dict-item]
            (lambda: pipeline.step(x.double()), "float64"),
            (lambda: pipeline.step(x.to_sparse()), "sparse"),
            (lambda: pipeline.step(torch.tensor(1.0)), "no rows"),
            (lambda: pipeline.save(tmp_path / "file"), "no directory"),
            (lambda: pipeline.resume(tmp_path / "file"), "no directory"),
        ):
            with pytest.raises(PlanError, match=words):
                call()


def test_a_hook_is_not_called_where_the_update_was_left_out() -> None:
    x, model, seen = torch.randn(4, 8), _layers(nn.ReLU), list[int]()
    plan = pipec.compile(model, x, "2xcpu", loss=_square, schedule="1f1b", microbatches=2)
    hooks = [lambda _: seen.append(1)]
    with pipec.Pipeline(plan, optimizer=sgd, on_nan="skip", hooks=hooks) as pipeline:
        assert pipeline.step(x * torch.nan).skipped
        assert not seen
        pipeline.step(x)
    assert seen == [1]


@pytest.mark.parametrize("on_nan", ["skip", "stop"])
def test_statistics_that_a_left_out_round_spoilt_are_those_of_before_it(on_nan: OnNan) -> None:
    x, model = torch.randn(4, 8), _layers(partial(nn.BatchNorm1d, 8))
    plan = pipec.compile(model, x, "2xcpu", loss=_square, schedule="1f1b", microbatches=2)
    odd = x.clone()
    odd[2] = torch.nan  # in the second microbatch alone
    left = []
    for rounds in ([x, odd, x], [x, x]):
        with pipec.Pipeline(plan, optimizer=sgd, on_nan=on_nan) as pipeline:
            for batch in rounds:
                with suppress(PlanError):
                    pipeline.step(batch)
            weights = pipeline.state_dict()
            assert weights is not None
            left.append({n: w.clone() for n, w in weights.items()})
    assert any(n.endswith("running_var") for n in left[0])
    for name, weight in left[0].items():
        if weight.is_floating_point():  # batches are counted, whatever is in them
            assert torch.equal(weight, left[1][name]), name
