from proxy.state.models import MAX_MODELS, ModelTable


def test_models_are_merged_and_the_first_backend_speaks():
    """One card a model, in the order of backends."""
    models = ModelTable()
    models.update("a", [{"id": "m", "root": "/a"}, {"no": "id"}])
    models.update("b", [{"id": "m", "root": "/b"}, {"id": "lora"}])

    assert models.merged() == [{"id": "m", "root": "/a"}, {"id": "lora"}]
    assert models.of("b") == ["m", "lora"]


def test_labels_are_a_closed_set():
    """Row 49: whatever a client asks for, metrics see a served name, `other` or `none`."""
    models = ModelTable()
    models.update("a", [{"id": "m"}])

    assert [models.label(asked) for asked in ("m", "x" * 1_000, None)] == ["m", "other", "none"]


def test_an_unlisted_backend_is_unknown_and_not_empty():
    """What was never read says nothing about what is served."""
    models = ModelTable()

    assert not models.is_known("a")
    assert models.may_serve("a", "m")
    models.update("a", [])
    assert models.is_known("a")
    assert not models.serves("a", "m")
    assert not models.may_serve("a", "m")


def test_a_backend_cannot_list_without_end():
    """The bound holds."""
    models = ModelTable()
    models.update("a", [{"id": f"m{number}"} for number in range(MAX_MODELS + 50)])

    assert len(models.of("a")) == MAX_MODELS


def test_whether_anybody_serves_a_model():
    """Whichever backend it is, up or down."""
    models = ModelTable()
    models.update("a", [{"id": "m"}])

    assert models.is_served("m")
    assert not models.is_served("x")


def test_l35_the_smallest_context_counts():
    """A request may go to any backend that lists the model; what is no number says nothing."""
    models = ModelTable()
    models.update("a", [{"id": "m", "max_model_len": 200}, {"id": "silent"}, {"id": "odd", "max_model_len": "9"}])
    models.update("b", [{"id": "m", "max_model_len": 100}])

    assert [models.context_tokens(name) for name in ("m", "silent", "odd", "x")] == [100, None, None, None]
