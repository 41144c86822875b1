import pytest

import sweep
from sweep import InputError
from sweep.policies import as_policies, catalogue

TEXTS = ("least_load(signal=requests+0.01*tokens, tie=random)", "weighted_round_robin(weights=5:1:1)")


def test_label__round_trip():
    for label in (
        "round_robin",
        "least_load(in_service_weight=0.5)",
        "least_load(in_service_weight=0.1234567890123)",
        *TEXTS,
    ):
        assert sweep.Policy.parse(label).label == label
        assert sweep.Policy.parse(label) == sweep.Policy.parse(sweep.Policy.parse(label).label)


def test_label__shows_only_what_differs_from_the_default():
    assert sweep.Policy("least_load", in_service_weight=1).label == "least_load"
    assert sweep.Policy.parse(" least_load( in_service_weight = 0.5 ) ").changed == ("in_service_weight",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queue_awere", "Did you mean 'queue_aware'?"),
        ("least_load(in_service_wait=1)", "Did you mean 'in_service_weight'?"),
        ("least_load(in_service_weight=-1)", "must be a finite number >= 0"),
        ("least_load(in_service_weight='a')", "must be a finite number >= 0"),
        ("least_load(in_service_weight)", "not of the form parameter=value"),
        ("least_load(0.5)", "not of the form parameter=value"),
        ("random(a=1)", "has no parameters"),
        ("soft_sticky(threshold=-1)", "'threshold' of policy 'soft_sticky' must be a finite number >= 0, got -1"),
        ("soft_sticky(threshold=nan)", "must be a finite number >= 0, got nan"),
        ("soft_sticky(threshold=-inf)", "must be a finite number >= 0, got -inf"),
        ("soft_sticky(relative=0.5)", "must be a finite number >= 1, got 0.5"),
        ("bounded_hash(bound=0.9)", "'bound' of policy 'bounded_hash' must be a finite number >= 1, got 0.9"),
        ("power_of_d(d=0)", "must be a finite number >= 1"),
        ("power_of_d(d=1.5)", "must be a whole number >= 1, got 1.5"),
        ("least_load(freshness_ms=-1)", "must be a finite number >= 0, got -1"),
        ("least_load(routers=0)", "must be a finite number >= 1 and <= 64, got 0"),
        ("least_load(tie=last)", "'tie' of policy 'least_load' must be one of first, random, rotate, got 'last'"),
        ("weighted_round_robin(weights=5:0)", "positive numbers, one per replica, such as 5:1:1, got '0'"),
        ("round robin", "not of the form name"),
        ("", "not of the form name"),
        ("__import__('os')", "not of the form parameter=value"),
    ],
)
def test_parse__bad_text_is_one_clear_sentence(text, said):
    with pytest.raises(InputError) as error:
        sweep.Policy.parse(text)
    assert said in str(error.value)


def test_engines__another_pair_is_an_error_that_names_them():
    with pytest.raises(InputError, match=r"does not run on the engine 'token_step'.*round_robin, least_load"):
        as_policies("locality_aware", "token_step")
    with pytest.raises(InputError, match="empty"):
        as_policies([], "timeline")
    with pytest.raises(InputError, match="given twice"):
        as_policies(["least_load", sweep.Policy("least_load")], "token_step")


def test_register__refuses_what_cannot_be_a_rule():
    with pytest.raises(InputError, match="built in"):
        sweep.register("round_robin")
    with pytest.raises(InputError, match="identifier"):
        sweep.register("my rule")
    with pytest.raises(InputError, match="'slack'"):
        sweep.register("mine", parameters={"slack": 1.0})
    with pytest.raises(InputError, match="no keyword"):
        sweep.register("mine", parameters={"class": 1.0})
    with pytest.raises(InputError, match="finite number"):
        sweep.register("mine", parameters={"bias": float("nan")})
    with pytest.raises(InputError, match="function of"):
        sweep.register("mine")(lambda view: 0)
    assert "mine" not in [rule.name for rule in catalogue()]


def test_catalogue__every_entry_is_complete():
    for rule in catalogue():
        assert rule.sentence.endswith(".") and rule.signals and rule.ties and rule.source and rule.reasons
        assert set(rule.engines) <= {"timeline", "token_step"}


def test_parse__the_default_of_weights_as_python_writes_it():
    assert sweep.Policy.parse("weighted_round_robin(weights=None)") == sweep.Policy("weighted_round_robin")


def test_register__no_parameter_has_the_name_of_an_axis():
    with pytest.raises(
        InputError, match=r"'freshness_ms' of policy 'mine' is the name of an axis.*sees the replicas live"
    ):
        sweep.register("mine", parameters={"freshness_ms": 0.0})
