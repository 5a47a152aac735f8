from __future__ import annotations

import inspect
import pickle

import pytest

from serve_app.core import errors
from serve_app.core.errors import DiscoError, EndpointError, InvalidRequest, Overloaded, QuotaExceeded, RateLimited

TREE = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, DiscoError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_survives_pickling(kind: type[DiscoError]) -> None:
    again = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(again) is kind
    assert (again.message, vars(again)) == ("what happened", vars(kind("what happened")))


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("must be positive", "max_tokens"),
        QuotaExceeded("spent", 3600.0),
        RateLimited("too many", 2.5),
        Overloaded("full", 7.5),
        EndpointError("it died", "phone"),
    ],
)
def test_details_survive_pickling(error: DiscoError) -> None:
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_every_error_has_its_own_code() -> None:
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes) == 16


def test_only_what_may_pass_is_retryable() -> None:
    retryable = {kind.__name__ for kind in TREE if kind.retryable}
    assert retryable == {
        "Overloaded",
        "RateLimited",
        "Draining",
        "EndpointError",
        "EndpointUnavailable",
        "EndpointTimeout",
        "EndpointFault",
    }


def test_an_error_without_a_message_says_its_code() -> None:
    assert DiscoError().message == "internal_error"
    assert errors.Draining("soon").message == "soon"
    assert DiscoError(3).message == "3"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = {word for word in (errors.__doc__ or "").replace("─", " ").split() if word in dir(errors)}
    assert drawn == {kind.__name__ for kind in TREE}
