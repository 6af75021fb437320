"""Hugging Face models: only the library's own code, tied weights once, and a folder that loads to the same logits."""

from __future__ import annotations

import json
import resource
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from earnest.protocol.recipe import Inner, Recipe, Scoring
from earnest.training.adapters.huggingface import CausalLm, build, check_memory, checked_config, export_model
from earnest.training.adapters.memmap import TokenFile
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import Spec, read_parameters, write_parameters
from earnest.training.tasks.task import TaskError, load_task

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 32,
}
PATH = "earnest.training.adapters.huggingface:CausalLm"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    tokens = (np.arange(3000) ** 2 % 61).astype("<u2")
    (tmp_path / "tokens.bin").write_bytes(tokens.tobytes())
    path = str(tmp_path / "tokens.bin")
    return {"tokens": path, "root": TokenFile(path, "uint16", 64).root(), "context": 16}


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama tied", "gpt2 tied, dropout"])
def test_a_round_trains_and_the_folder_loads_to_the_same_logits(
    config: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    task = load_task(PATH, {"config": json.dumps(config), **options})
    assert isinstance(task, CausalLm)
    inner = Inner(steps=3, batch=4, lr=1e-2)
    recipe = Recipe(PATH, task.pool_size, inner=inner, scoring=Scoring(held_out=2, own=2))
    state = initial_state(task, recipe)
    local, again = (train_round(task, recipe, state, range(12), 0, 1, TrainerState()) for _ in range(2))
    assert local.losses[-1] < local.losses[0]
    for name, value in local.pseudo_gradient.items():
        assert torch.equal(value, again.pseudo_gradient[name])
    trained = {name: value - local.pseudo_gradient[name] for name, value in state.parameters.items()}
    task.export(trained, tmp_path / "model")

    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"config.json", "generation_config.json", "model.safetensors"}
    ours = task.build_model(0).eval()
    write_parameters(ours, trained)
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", local_files_only=True, use_safetensors=True
    )
    ids = torch.arange(32).view(2, 16)
    with torch.inference_mode():
        assert torch.equal(loaded.eval()(input_ids=ids).logits, ours(input_ids=ids).logits)


def test_tied_weights_are_one_parameter(options: dict[str, Any]) -> None:
    tied = CausalLm(LLAMA, **options).build_model(0)
    apart = CausalLm({**LLAMA, "tie_word_embeddings": False}, **options).build_model(0)
    sizes = [Spec.of(read_parameters(model)).size for model in (tied, apart)]
    assert sizes[1] - sizes[0] == 64 * 16


def test_models_follow_the_seed_and_leave_the_global_generator_alone(options: dict[str, Any]) -> None:
    task = CausalLm(LLAMA, **options)
    before = torch.get_rng_state()
    first, second, other = (read_parameters(task.build_model(seed)) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert {value.dtype for value in first.values()} == {torch.float32}


def test_loss_is_in_nats_per_byte(options: dict[str, Any]) -> None:
    per_token, per_byte = CausalLm(LLAMA, **options), CausalLm(LLAMA, **options, bytes_per_token=4.0)
    model = per_token.build_model(0)
    (batch,) = per_token.batches("report", 0, [0, 1], 2)
    with torch.inference_mode():
        loss = per_token.loss(model, batch)
        assert loss.shape == (2,)
        assert loss.mean().item() == pytest.approx(np.log(64), abs=0.2)
        assert torch.equal(per_byte.loss(model, batch), loss / 4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil/repo--model.Evil"}}, "must not contain 'auto_map'"),
        ({"_attn_implementation": "stranger/kernel"}, "must not contain '_attn_implementation'"),
        ({"quantization_config": {"quant_method": "awq"}}, "must not contain 'quantization_config'"),
        ({"rope_scaling": {"auto_map": 1}}, "must not contain 'auto_map'"),
        ({"model_type": "no-such-model"}, "no causal language model"),
        ({"model_type": "clip"}, "no causal language model"),
        ({"model_type": ["llama"]}, "no causal language model"),
        ({"hidden_size": "wide"}, "not a configuration of llama"),
    ],
)
def test_a_configuration_that_asks_for_more_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        checked_config({**LLAMA, **change})


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '"x"'])
def test_a_malformed_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="config is not"):
        checked_config(text)


def test_a_configuration_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert checked_config(tmp_path / "config.json").hidden_size == 16


def test_data_without_a_root_is_refused_and_the_error_names_the_root(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=options["root"]):
        load_task(PATH, {"config": json.dumps(LLAMA), **options, "root": ""})


@pytest.mark.parametrize("context", [0, 33])
def test_a_context_that_the_model_does_not_take_is_refused(context: int, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="context must be 1 to 32"):
        CausalLm(LLAMA, **{**options, "context": context})


def test_parameters_of_another_model_are_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the parameters"):
        export_model(checked_config(LLAMA), {"weight": torch.zeros(2)}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 65_000},
        {"vocab_size": 10**9, "hidden_size": 10**5},
        {"hidden_size": 2**70},
        {"hidden_size": 2**40},
        {"num_attention_heads": 0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2**80}},
    ],
    ids=lambda change: "-".join(map(str, change.values()))[:30],
)
def test_a_strangers_model_larger_than_the_machine_is_refused_before_its_memory_is_taken(
    change: dict[str, Any], options: dict[str, Any]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TaskError):
        load_task(PATH, {"config": json.dumps({**LLAMA, **change}), **options})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "less than a GiB"


def test_a_model_is_measured_without_being_made() -> None:
    config = checked_config(LLAMA)
    size = 4 * sum(p.numel() for p in build(config, 0).parameters())
    check_memory(config, 2 * size)
    with pytest.raises(ValueError, match="tensors have"):
        check_memory(config, size - 1)
    assert not nn.modules.module._global_parameter_registration_hooks, "nothing is left behind"
