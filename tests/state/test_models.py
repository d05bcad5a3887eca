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


def test_an_adapters_context_is_its_base_models():
    """VLLM's card of an adapter has none of its own."""
    models = ModelTable()
    adapter = {"id": "lora", "root": "/lora", "parent": "m", "max_model_len": None}
    models.update("a", [{"id": "m", "max_model_len": 9_000}, adapter])
    models.update("b", [{"id": "m", "max_model_len": 7_000}, {"id": "lora", "parent": "gone"}])

    assert [models.context_tokens(name) for name in ("m", "lora", "x")] == [7_000, 9_000, None]


def test_only_other_names_are_a_change():
    """Cards have the time of their making in them."""
    models = ModelTable()

    assert models.update("a", [{"id": "m", "created": 1}])
    assert not models.update("a", [{"id": "m", "created": 2}])
    assert models.update("a", [{"id": "m", "created": 2}, {"id": "lora"}])
    assert models.update("a", [{"id": "m", "created": 2}])


def test_a_model_is_another_one_while_its_weights_are_from_elsewhere():
    """An adapter that was put in another's place; it may be gone for a while in between, and come back as it was."""
    models, weights = ModelTable(), []
    for root in ("/one", "/two", None, "/two", "/three", "/one"):
        models.update("a", [{"id": "m", "root": "/m"}, *([{"id": "lora", "root": root}] if root else [])])
        models.update("b", [{"id": "lora", "root": "/elsewhere"}])
        weights.append(models.weights_of("lora"))

    one, two, gone, again, three, back = weights
    assert one == gone == back == 0
    assert two == again != three
    assert 0 < two < 2**64
    assert models.weights_of("m") == models.weights_of("x") == models.weights_of(None) == 0


def test_each_backend_may_replace_a_model_in_its_own_time():
    """Both times nothing matches what was computed before."""
    models, weights = ModelTable(), set()
    for roots in (("/old", "/old"), ("/new", "/old"), ("/new", "/new")):
        for backend, root in zip("ab", roots, strict=True):
            models.update(backend, [{"id": "lora", "root": root}])
        weights.add(models.weights_of("lora"))

    assert len(weights) == 3


def test_first_places_of_models_are_bounded():
    """Names that come and go for months; who is forgotten is first seen again."""
    models = ModelTable()
    for number in range(3 * MAX_MODELS):
        models.update("a", [{"id": f"m{number}", "root": "/m"}])

    assert len(models._first_roots["a"]) == MAX_MODELS
