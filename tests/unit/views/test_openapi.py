"""The views' OpenAPI document: it is one, and an instance answers as it says, whatever is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from penstock.views.api.openapi import ANSWERS
from tests.support.random_cases import FULL
from tests.support.view_api import KEYS, Doors

TOKEN = "open-sesame"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
# What an instance may always say: it has too much to do, or too little time.
NOT_NOW = (503, 504)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(tmp_path_factory.mktemp("views"), token=TOKEN)
    at = datetime(2026, 1, 31, tzinfo=UTC)
    made.put(*({"key": key, "town": key, "n": n, "f": 0.1, "at": at, "open": True} for n, key in enumerate(KEYS)))
    yield made
    for pool in made.pools:
        pool.close()


def tried(doors: Doors, operation: str, examples: int) -> None:
    """Ask what Hypothesis makes of one operation of the document."""
    # Their import takes seconds, which a run of other tests does not wait for.
    import hypothesis
    import schemathesis
    from hypothesis import strategies
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    # The document does not say which fields a view has, and the token is sent whatever else is made of a head.
    excluded: list[Any] = [not_a_server_error, positive_data_acceptance, negative_data_rejection]
    described = schemathesis.openapi.from_asgi("/v1/openapi.json", doors.app, headers=AUTHORIZED)

    @hypothesis.settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategies.data())
    def one(data: strategies.DataObject) -> None:
        mode = data.draw(strategies.sampled_from(list(GenerationMode)))
        case = data.draw(described.find_operation_by_id(operation).as_strategy(generation_mode=mode))
        # Else hardly anything would be asked of a view that there is.
        if "view" in case.path_parameters and data.draw(strategies.integers(0, 7)):
            case.path_parameters["view"] = "things"
        found = case.call(headers=AUTHORIZED)
        assert found.status_code < 500 or found.status_code in NOT_NOW, found.text
        case.validate_response(found, excluded_checks=excluded, headers=AUTHORIZED)

    one()


@pytest.mark.parametrize("operation", sorted(ANSWERS))
def test_answers_to_generated_requests_conform_to_the_document(doors: Doors, operation: str) -> None:
    tried(doors, operation, 500 if FULL else 5)


def test_the_document_is_valid_and_names_required_credentials(doors: Doors) -> None:
    document = doors.asked(lambda client: client.get("/v1/openapi.json", headers=AUTHORIZED)).json()
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            assert "application/json" in answers["200"]["content"], path
            assert ("security" in operation) == (path not in ("/v1/live", "/v1/ready"))
            assert ("415" in answers) == (method == "post")
            assert all(list(one["content"]) == ["application/problem+json"] for s, one in answers.items() if s >= "4")
    search = document["paths"]["/v1/views/{view}/search"]["post"]
    assert "Penstock-Deadline-Ms" in [one["name"] for one in search["parameters"]]
    assert "partitions" not in str(document["components"]["schemas"]["Search"])
