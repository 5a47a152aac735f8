from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from serve_app.cli.exits import BAD_INPUT, OK
from serve_app.cli.traces import traces
from serve_app.sim import shipped
from serve_app.sim.catalogue import SOURCES, State, check_folder
from serve_app.sim.public import load_folder
from serve_app.sim.tables import BadInput
from tests.sim.public_data import FOLDER, needs_public_data


def test_every_shipped_profile_can_be_drawn_from_and_names_its_source() -> None:
    for name in shipped.service_names():
        trace = shipped.service(name)
        assert trace.ttft.min() > 0
        assert trace.source
    for name in shipped.prompt_names():
        lengths = shipped.prompts(name)
        assert lengths.prompt_tokens.min() >= 1
        assert lengths.prompt_tokens.size == lengths.output_tokens.size
        assert lengths.source
    for name in shipped.device_names():
        assert shipped.device(name).line.predict(0) > 0
    assert np.diff(shipped.arrivals("azure").arrivals).mean() == pytest.approx(1)


def test_the_papers_devices_take_any_overhead() -> None:
    device = shipped.paper_device("pixel7pro-bloom-1.1b", 0.3)
    assert device.line.predict(31.32) == pytest.approx(1 + 0.3 + 1 / 13.93)


@pytest.mark.parametrize("load", [shipped.service, shipped.device, shipped.prompts, shipped.arrivals])
def test_an_unknown_name_lists_the_known_ones(load: object) -> None:
    with pytest.raises(BadInput, match="no profile and no file is named nope; profiles: "):
        load("nope")  # type: ignore[operator]


def test_a_file_of_ones_own_takes_a_profiles_place(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("ttft_s,prompt_tokens,output_tokens,arrival_s,tbt_s\n0.5,10,20,0,0.1\n0.7,20,9,3,0.1\n")
    assert shipped.service(str(log)).ttft.tolist() == [0.5, 0.7]
    assert shipped.prompts(str(log)).prompt_tokens.tolist() == [10, 20]
    assert shipped.arrivals(str(log)).arrivals.tolist() == [0, 3]
    assert shipped.device(str(log)).prefill_rate == pytest.approx(50)


@needs_public_data
def test_profiles_are_close_to_the_traces_they_come_from() -> None:
    originals = {trace.name: trace for trace in load_folder(FOLDER).prompts}
    for name in shipped.prompt_names():
        lengths, original = shipped.prompts(name), originals[name]
        kept = original.prompt_tokens <= 4096
        assert lengths.prompt_tokens.mean() == pytest.approx(original.prompt_tokens[kept].mean(), rel=0.04)
        assert lengths.output_tokens.mean() == pytest.approx(original.output_tokens[kept].mean(), rel=0.04)


def output(folder: Path | None) -> tuple[int, str]:
    console = Console(width=200)
    with console.capture() as captured:
        code = traces(folder, console)
    return code, captured.get()


def test_the_originals_are_named_with_licence_and_columns() -> None:
    code, text = output(None)
    assert code == OK
    for source in SOURCES:
        assert source.file in text
        assert source.url in text
        assert source.sha256 in text


@needs_public_data
def test_the_public_folder_is_the_same_as_the_one_used() -> None:
    assert {item.state for item in check_folder(FOLDER)} == {State.SAME}
    assert output(FOLDER)[0] == OK


@needs_public_data
def test_a_copy_is_judged_by_content(tmp_path: Path) -> None:
    shutil.copyfile(FOLDER / "thefastest_2024.csv", tmp_path / "thefastest_2024.csv")
    shorter = (FOLDER / "alpaca_en_demo_lengths.csv").read_text().splitlines()[:-1]
    (tmp_path / "alpaca_en_demo_lengths.csv").write_text("\n".join(shorter))
    (tmp_path / "azure_llm_2023_conv.csv").write_text("when\n1\n")
    found = {item.file: item for item in check_folder(tmp_path)}
    assert found["thefastest_2024.csv"].state is State.SAME
    assert found["alpaca_en_demo_lengths.csv"].state is State.USABLE
    assert found["alpaca_en_demo_lengths.csv"].said == "998 rows instead of 999"
    assert found["azure_llm_2023_conv.csv"].state is State.BROKEN
    assert found["llmperf_2023_individual.csv"].state is State.ABSENT
    code, text = output(tmp_path)
    assert code == BAD_INPUT
    assert "column TIMESTAMP is missing" in text


def test_what_is_no_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces(tmp_path / "nowhere", Console()) == BAD_INPUT
    assert "is no folder" in capsys.readouterr().err
