"""What somebody who writes a rule, or a job, could get wrong: refused, or covered whatever it is."""

import re

import pytest

from prifedsync import run as running
from prifedsync.engines import Reference, Vectorised
from prifedsync.local import SeededDraws
from prifedsync.rules import Alone, Ditto, FedAvg, FedProx, PFedMe, Rule, Steps
from prifedsync.rules.pfedme import Envelope
from prifedsync.values import BadValue

from ..engines.settings import MLP, ask, net_of, noisy_queries, perturbing, private, records_of, unnoised
from ..engines.test_device import OnDevice
from .test_kept import config_of


class Wandering(Rule):
    """A rule of one's own that sends its anchor, which moved along gradients that nobody noised."""

    name = "wandering"

    @property
    def steps(self):
        return Envelope(1, 1.0)

    def finish(self, trained, anchor):
        return anchor


@pytest.mark.parametrize("kind", [Vectorised, Reference, OnDevice], ids=lambda kind: kind.__name__)
def test_output_perturbation_covers_whatever_the_rule_makes_of_the_training(kind):
    jobs = [unnoised("client 0", 5, plan=perturbing(noise_multiplier=1.0), batch="full", local_steps=4, strength=0.5)]
    sent = []
    for seed in (1, 2):
        engine = kind(net_of(MLP), jobs, records_of(MLP, (5,)), Wandering(), SeededDraws(seed))
        sent.append(ask(engine, 0, [0], engine.start).rows.value)
        assert noisy_queries(engine) == [1]
    apart = (sent[0] - sent[1]).std().item() / 2**0.5
    assert 0.2 < apart < 0.4  # clip_norm 0.3, noise_multiplier 1


def test_output_perturbation_of_two_models_is_refused_by_the_engine_too():
    jobs = [unnoised("client 0", 5, plan=perturbing(), batch="full", local_steps=4)]
    with pytest.raises(BadValue, match="covers one model, and under rule pfedme two may leave"):
        Vectorised(net_of(MLP), jobs, records_of(MLP, (5,)), PFedMe(inner_steps=2), SeededDraws(1))


def test_steps_that_are_not_those_of_the_rule_are_refused():
    with pytest.raises(BadValue, match="kept_steps = 5 are more than all local_steps = 2"):
        private("client 0", 5, local_steps=2, kept_steps=5, kept_counted=True)
    for rule, job in [
        (Ditto(), private("client 0", 5)),
        (FedAvg(), private("client 0", 5, kept_steps=2)),
        (FedAvg(), private("client 0", 5, local_steps=2, kept_steps=2, kept_counted=True)),
        (Alone(publish=True), private("client 0", 5)),
    ]:
        with pytest.raises(BadValue, match=f"do not go with rule {rule.name}"):
            Vectorised(net_of(MLP), [job], records_of(MLP, (5,)), rule, SeededDraws(1))


def test_steps_that_look_at_an_anchor_must_say_so():
    with pytest.raises(TypeError, match="Forgetful overrides pull: set anchored = True"):

        class Forgetful(Steps):
            def pull(self, weights, anchor, strength):
                return weights - anchor


def test_a_rule_that_sends_without_any_gradient_is_refused(monkeypatch):
    monkeypatch.setattr(FedProx, "upload_steps", lambda self, local_steps: 0)
    with pytest.raises(BadValue, match=r"rule.upload_steps = 0 must be .* rule fedprox would upload what no noisy"):
        running.prepare(config_of("fedprox"))


@pytest.mark.parametrize("name", ["fedprox", "mixture"])
def test_the_remedy_for_an_overshooting_strength_is_accepted(name):
    rate = "local.learning_rate=0.6"
    with pytest.raises(BadValue) as refused:
        running.prepare(config_of(name, rate, "rule.strength=9"))
    most = re.search(r"at most ([\d.]+)", str(refused.value))[1]
    assert running.prepare(config_of(name, rate, f"rule.strength={most}")).jobs


def test_kept_models_are_their_owners_to_read(tmp_path):
    for name, mode in (("ditto", 0o600), ("fedavg", 0o644)):
        running.train(config_of(name), out=tmp_path / name)
        files = list((tmp_path / name / "models" / "personal").iterdir())
        assert files
        assert {file.stat().st_mode & 0o077 for file in files} <= {mode & 0o077, 0}
        if name == "ditto":
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_rule_that_does_not_exist():
    with pytest.raises(BadValue, match=r"rule.name = fedporx is not a rule; did you mean fedprox\? The rules are fedavg, "):
        running.prepare(config_of("fedporx"))
