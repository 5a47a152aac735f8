from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serve_app.sim.public import azure, latencylab, llmperf, load_folder, servegen
from serve_app.sim.tables import BadInput, read_csv, read_json_array, read_json_lines
from serve_app.sim.traces import own_arrivals, own_device, own_lengths, own_service


def write(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def complaint(load: object, path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        load(path)  # type: ignore[operator]
    message = str(refused.value)
    assert "\n" not in message
    assert str(path) in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latency\n1\n", "column ttft_s is missing; the header must name ttft_s (has: latency)"),
        ("", "column ttft_s is missing; the header must name ttft_s"),
        ("ttft_s\n", "holds no rows; give a trace with at least one"),
        ("ttft_s\n0.3\n\n-0.1\n", "column ttft_s, line 4: the value is below 0; mend or remove the row"),
        ("ttft_s\nnan\n", "column ttft_s, line 2: the value is not finite; mend or remove the row"),
        ("ttft_s\nInf\n", "column ttft_s, line 2: the value is not finite; mend or remove the row"),
        ("ttft_s\nsoon\n", "column ttft_s, line 2: the value is no number; mend or remove the row"),
        ("ttft_s,model\n0.3,a\n0.4\n", "line 3 has 1 fields instead of 2; mend or remove it"),
        ("ttft_s,error\n,timeout\n,reset\n", "all 2 rows failed; give a trace with answers in it"),
        ("ttft_s,tbt_s\n0.3,0\n", "column tbt_s is 0 for most rows; give the mean seconds between tokens"),
    ],
)
def test_a_bad_ttft_trace_is_one_line_with_column_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert complaint(own_service, write(tmp_path, text)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt_tokens,output_tokens\n0,5\n", "column prompt_tokens, line 2: the value is below 1"),
        ("prompt_tokens,output_tokens\n7,-1\n", "column output_tokens, line 2: the value is below 0"),
        ("prompt_tokens,output_tokens\n7.5,1\n", "column prompt_tokens, line 2: the value is no whole number"),
        ("prompt_tokens\n7\n", "column output_tokens is missing; the header must name prompt_tokens, output_tokens"),
    ],
)
def test_a_bad_length_trace_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    assert complaint(own_lengths, write(tmp_path, text)).startswith(said)


def test_arrivals_must_not_go_back(tmp_path: Path) -> None:
    assert complaint(own_arrivals, write(tmp_path, "arrival_s\n1\n0\n")).startswith("column arrival_s goes back")


def test_what_is_no_file_or_no_text_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in complaint(own_service, tmp_path / "nowhere.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"ttft_s\n\xff\xfe\n")
    assert "is not CSV in UTF-8" in complaint(own_service, binary)


def test_failed_requests_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffttft_s,tbt_s,error\n0.5,0.1,\n,,overloaded\n0.3,0.3,\n0.4,0.2,\n")
    service = own_service(path)
    assert service.ttft.tolist() == [0.5, 0.3, 0.4]
    assert service.dropped == 1
    assert service.decode_rate == pytest.approx(5.0)


def test_one_file_may_serve_for_everything(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens,ttft_s,note\n100,8,20,0.5,x\n107,9,30,0.4,y\n")
    assert own_service(path).ttft.size == 2
    assert own_lengths(path).output_tokens.tolist() == [20, 30]
    assert own_arrivals(path).arrivals.tolist() == [0, 7]


def test_a_device_log_becomes_a_line_that_an_outlier_does_not_bend(tmp_path: Path) -> None:
    rows = [f"{length},{0.4 + length / 50},0.05" for length in range(10, 110)] + ["60,30,0.05"]
    device = own_device(write(tmp_path, "\n".join(["prompt_tokens,ttft_s,tbt_s", *rows])))
    assert device.prefill_rate == pytest.approx(50, rel=0.01)
    assert device.intercept == pytest.approx(0.4, rel=0.02)
    assert device.decode_rate == pytest.approx(20)


@pytest.mark.parametrize(
    ("rows", "said"),
    [("9,0.5,0.1\n9,0.6,0.1", "one length only"), ("9,0.5,0.1\n90,0.2,0.1", "does not grow with prompt_tokens")],
)
def test_a_log_that_is_no_line_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    assert said in complaint(own_device, write(tmp_path, f"prompt_tokens,ttft_s,tbt_s\n{rows}\n"))


def test_json_is_checked_as_well(tmp_path: Path) -> None:
    assert "no JSON object" in complaint(lambda p: read_json_lines(p, ["a"]), write(tmp_path, "[1]\n", "x.jsonl"))
    assert "field a is missing" in complaint(lambda p: read_json_lines(p, ["a"]), write(tmp_path, "{}\n", "x.jsonl"))
    assert "is not JSON" in complaint(lambda p: read_json_lines(p, ["a"]), write(tmp_path, "{\n", "x.jsonl"))
    assert "holds no rows" in complaint(lambda p: read_json_lines(p, ["a"]), write(tmp_path, "\n", "x.jsonl"))
    assert "holds no rows" in complaint(lambda p: read_json_array(p, ["a"]), write(tmp_path, "{}", "x.json"))
    assert "JSON array" in complaint(lambda p: read_json_array(p, ["a"]), write(tmp_path, "[", "x.json"))


def test_an_original_of_llmperf_is_read_as_well(tmp_path: Path) -> None:
    rows = (
        '[{"error_code": null, "ttft_s": 0.3, "inter_token_latency_s": 0.02},'
        ' {"error_code": 429, "ttft_s": -1, "inter_token_latency_s": null}]'
    )
    (service,) = llmperf(write(tmp_path, rows, "groq_70b.json"))
    assert (service.name, service.ttft.tolist(), service.dropped) == ("groq-70b", [0.3], 1)
    negative = '[{"error_code": null, "ttft_s": -1, "inter_token_latency_s": 0.1}]'
    assert "item 0: ttft_s is no number of seconds" in complaint(llmperf, write(tmp_path, negative, "bad_70b.json"))


def test_public_files_with_the_wrong_content_are_one_line(tmp_path: Path) -> None:
    bad_date = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n")
    assert "column TIMESTAMP" in complaint(azure, bad_date)
    assert "no chunk-*-trace.csv" in complaint(servegen, tmp_path)
    write(tmp_path, "0,1,1,Poisson,1,1\n", "chunk-1-trace.csv")
    with pytest.raises(BadInput, match="unknown name"):
        servegen(tmp_path)
    failed = '{"endpoint": "x", "success": true, "ttft_s": "?", "chunk_gaps_s": []}\n'
    assert "line 1: ttft_s" in complaint(latencylab, write(tmp_path, failed, "x.jsonl"))
    assert "no known traces" in complaint(load_folder, tmp_path)
    assert "is no folder" in complaint(load_folder, tmp_path / "nowhere")


def test_groups_keep_rows_and_lines_together(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path, "who,ttft_s\na,1\nb,2\na,-3\n"), ["who", "ttft_s"])
    groups = table.group("who")
    assert list(groups) == [("a",), ("b",)]
    assert np.array_equal(groups[("b",)].numbers("ttft_s"), [2.0])
    with pytest.raises(BadInput, match="line 4"):
        groups[("a",)].numbers("ttft_s")
