import json
from dataclasses import replace

import pytest
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.harm import HarmTerms
from earnest.protocol.recipe import CodecChoice, Inner, Outer, Privacy, Recipe, RecipeError, Scoring

RECIPE = Recipe(
    task="earnest.training.tasks.shakespeare:Shakespeare",
    pool_size=75_000,
    task_options={"layers": 2, "dropout": 0.5, "tied": True, "corpus": "plays"},
    codec=CodecChoice("topk-2bit", k=64, error_feedback=0.5),
)

positive = st.floats(1e-6, 1e3)
recipes = st.builds(
    Recipe,
    task=st.just("module:Class"),
    pool_size=st.integers(1, 2**32),
    task_options=st.dictionaries(
        st.text(max_size=5), st.one_of(st.integers(), st.floats(-1, 1), st.booleans(), st.text(max_size=5))
    ),
    seed=st.integers(0, 2**64 - 1),
    inner=st.builds(Inner, steps=st.integers(1, 9), batch=st.integers(512, 600), lr=positive),
    outer=st.builds(Outer, lr=positive, momentum=st.floats(0, 0.99)),
    scoring=st.builds(Scoring, clip_norm=positive, harm=st.builds(HarmTerms, bound=st.floats(0.1, 1))),
)


@given(recipes)
def test_a_recipe_survives_its_file(recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.hash() == keccak(recipe.to_json())


def test_layout_does_not_matter_and_every_value_does():
    spaced = json.dumps(json.loads(RECIPE.to_json()), indent=3).encode()
    assert Recipe.from_json(spaced).hash() == RECIPE.hash()
    assert replace(RECIPE, seed=1).hash() != RECIPE.hash()
    changed = replace(RECIPE, scoring=replace(RECIPE.scoring, strength=0.25))
    assert changed.hash() != RECIPE.hash()


def test_an_integer_where_a_number_is_expected_hashes_as_that_number():
    whole = replace(RECIPE, outer=Outer(lr=1, momentum=0))
    assert whole.hash() == replace(RECIPE, outer=Outer(lr=1.0, momentum=0.0)).hash()
    assert b'"lr":1.0' in whole.to_json()


def test_canonical_bytes_are_sorted_and_dense():
    text = RECIPE.to_json().decode()
    assert " " not in text
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert text.isascii()


def test_defaults_are_those_of_the_protocol_page():
    scoring = RECIPE.scoring
    assert (scoring.held_out, scoring.own, scoring.strength) == (512, 512, 0.5)
    assert (scoring.overlap_similarity, scoring.cosine_similarity, scoring.norm_limit) == (0.4, 0.65, 5.0)
    assert scoring.harm == HarmTerms(0.2, 0.005, 1e3, 10, 1e-6)
    assert RECIPE.codec.chunk == 4096


def test_a_recipe_knows_its_pool():
    pool = RECIPE.sample_pool()
    assert (pool.size, pool.per_seat, pool.held_out) == (75_000, 150 * 16, 512)


def test_an_adaptive_recipe_keeps_its_limits():
    codec = CodecChoice("lowrank-int4", rank=16, rank_min=2, energy=0.9)
    recipe = replace(RECIPE, codec=codec, inner=Inner(steps_min=40), overlap="eager")
    assert (recipe.judged_per_seat, RECIPE.judged_per_seat) == (40 * 16, 150 * 16)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.codec.adaptive and not RECIPE.codec.adaptive


def test_a_trainer_is_judged_only_on_what_the_fewest_steps_cover():
    codec = CodecChoice("topk-2bit", k_min=8, energy=0.9)
    with pytest.raises(ValueError, match=r"scoring\.own exceeds"):
        replace(RECIPE, codec=codec, inner=Inner(steps_min=31))


def test_noise_is_part_of_the_recipe_of_private_data():
    private = replace(RECIPE, data="private", privacy=Privacy(clip=2.0, noise=0.5))
    assert Recipe.from_json(private.to_json()) == private
    assert private.hash() != replace(private, privacy=Privacy(clip=2.0)).hash()


def edited(path: str, value) -> bytes:
    document = json.loads(RECIPE.to_json())
    *folders, key = path.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("colour", 1, "recipe: unknown key 'colour'"),
        ("seed", ..., "recipe: missing key 'seed'"),
        ("inner.momentum", 1, "recipe.inner: unknown key 'momentum'"),
        ("scoring.harm.alpha", ..., "recipe.scoring.harm: missing key 'alpha'"),
        ("seed", 1.0, "recipe.seed: 1.0 is not int"),
        ("seed", True, "recipe.seed: True is not int"),
        ("seed", -1, "recipe: seed lies in"),
        ("seed", 2**64, "recipe: seed lies in"),
        ("task", "nocolon", "recipe: task is module:Class"),
        ("task", None, "recipe.task: None is not str"),
        ("inner", [], "recipe.inner: not an object"),
        ("inner.lr", "0.1", "recipe.inner.lr: '0.1' is not float"),
        ("inner.lr", 10**400, "recipe.inner.lr"),
        ("inner.lr", 0, "recipe.inner: lr is positive"),
        ("inner.steps", 0, "recipe.inner: steps and batch"),
        ("inner.steps", 31, "scoring.own exceeds"),
        ("inner.optimizer", "sgd", "recipe.inner.optimizer: 'sgd' is none of adamw, muon"),
        ("inner.betas", [0.9], "recipe.inner.betas: not a list of 2"),
        ("inner.betas", [0.9, 1.0], "betas lie in"),
        ("inner.steps_min", 151, "steps_min lies in"),
        ("inner.steps_min", 30, "inner.steps_min needs an adaptive codec"),
        ("inner.lr_warmup_steps", -1, "lr_warmup_steps is not negative"),
        ("inner.lr_schedule", "linear", "is none of constant, cosine, wsd"),
        ("inner.precision", "fp8", "is none of fp32, bf16, fp16"),
        (
            "codec.name",
            "zip",
            "recipe.codec: no codec named 'zip'; the codecs are dense-bf16, int8, topk-2bit, lowrank-int4",
        ),
        ("codec.k", 5000, "1 <= k <= chunk"),
        ("codec.chunk", 65_537, "1 <= k <= chunk <= 65536"),
        ("codec.k_min", 65, "k_min lies in"),
        ("codec.k_min", 8, "an adaptive codec has both energy"),
        ("codec.energy", 0.9, "an adaptive codec has both energy"),
        ("codec.energy", 1.0, "energy lies in"),
        ("codec.rank", 0, "rank lies in"),
        ("codec.rank", 65, "rank lies in"),
        ("codec.rank_min", 9, "rank_min lies in"),
        ("codec.rank_min", 2, "rank_min for lowrank-int4"),
        ("overlap", "late", "is none of none, delayed, eager"),
        ("data", "public", "is none of assigned, private"),
        ("privacy.clip", 1.0, "privacy is for private data"),
        ("privacy.noise", 1.0, "noise needs a clip"),
        ("privacy.delta", 0.0, "delta lies in"),
        ("outer.aggregation", "median", "is none of mean, contributor-mean"),
        ("outer.momentum", 1.0, "momentum lies in"),
        ("scoring.strength", 0.0, "strength lies in"),
        ("scoring.held_out", 1, "held_out and own"),
        ("scoring.harm.delta", 0.5, "harm needs"),
        ("task_options", {"a": []}, "recipe.task_options.a"),
        ("task_options", {"a": None}, "recipe.task_options.a"),
        ("pool_size", 0, "pool_size lies in"),
        ("max_payload_bytes", 0, "max_payload_bytes"),
        ("warmup_steps", -1, "warmup_steps"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_with_its_path(path, value, reason):
    with pytest.raises(RecipeError) as error:
        Recipe.from_json(edited(path, value))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 257, "nested deeper"),
        (b" " * 65_537, "larger than"),
        (b"[]", "not an object"),
        (b'{"seed":' + b"9" * 5_000 + b"}", "not JSON"),
        (RECIPE.to_json().replace(b'"seed":0', b'"seed":0,"seed":0'), "a key occurs twice"),
        (RECIPE.to_json().replace(b'"lr":0.7', b'"lr":NaN'), "NaN is not a number"),
        (RECIPE.to_json().replace(b'"lr":0.7', b'"lr":-Infinity'), "-Infinity is not a number"),
        (RECIPE.to_json().replace(b'"lr":0.7', b'"lr":1e999'), "1e999 is too large a number"),
    ],
)
def test_bytes_that_are_no_recipe_are_refused(data, reason):
    with pytest.raises(RecipeError, match=reason):
        Recipe.from_json(data)


def test_a_recipe_made_of_wrong_types_has_no_hash():
    with pytest.raises(RecipeError, match=r"recipe\.task_options\.a"):
        replace(RECIPE, task_options={"a": None}).hash()  # pyright: ignore[reportArgumentType]
