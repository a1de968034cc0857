"""report.py: what the page says of runs of every kind, and what it refuses."""

import html
import json
import re
from html.parser import HTMLParser

import pytest
from test_inspecting import LINE, write_lines
from test_tracing import record
from test_tracing import step as traced_step

import report
from corpora import run_program, train
from made_runs import CONFIG, epoch_end, iteration, records, step, with_options, write
from oktopk_training.errors import UserError
from oktopk_training.trace_files import DROPPED, write_trace

REPORT = "scripts/report.py"
NASTY = "</script><script>alert(1)</script>"
SPEECH = ["Training loss", "WER on validation", "CER on validation", "Learning rate"]
SENT = ["Sent per step, kB", "Sparsity", "Entries of the result / k", "Entries chosen by rank 0 / k"]


class Page(HTMLParser):
    """What a reader sees: headings, texts, the scripts by their types, and whether every element ends."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.texts, self.scripts, self.links = [], [], [], [], []
        self.feed(text.replace("<wbr>", ""))
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append(dict(attributes).get("type"))
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        assert not [name for name, _ in attributes if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(text.strip())
            if self.open[-1] in ("h1", "h2", "h3"):
                self.headings.append(text)

    @property
    def text(self):
        return " ".join(filter(None, self.texts))


def text_of(*runs):
    return report.report(report.shown([report.Run.read(run) for run in runs]))


def page_of(*runs):
    return Page(text_of(*runs))


def test_a_run_of_one_dense_rank_has_its_learning_its_times_and_its_configuration(finished):
    run, _ = finished
    done = run_program(REPORT, run)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(run / 'report.html').as_uri()}\n"
    page = Page((run / "report.html").read_text())
    assert page.headings[:6] == ["dense", "What came of it", "Learning", *SPEECH[:3]]
    assert "What is sent" not in page.headings
    assert "Sparsity" not in page.headings
    assert "sparse phase" not in page.texts
    assert {"Time per step", "Time per step: dense", "Configuration"} <= set(page.headings)
    assert "not finished" not in page.texts
    summary = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {f"{summary['wer']:.3f}", f"{summary['loss_last']:.1f}"} <= set(page.texts)
    assert f"{summary['ms_per_step_dense']['total']:,.2f}" in page.texts
    assert {"hidden_size", "16", "torch version"} <= set(page.texts)


def test_a_run_of_language_has_its_perplexity(text_corpus, tmp_path):
    run = tmp_path / "run"
    words = ("--dnn", "lstm", "--dataset", "ptb", "--max-epochs", "1")
    assert train(text_corpus, run, *words).returncode == 0
    page = page_of(run)
    assert "perplexity on validation" in page.headings
    assert "WER on validation" not in page.headings


def test_runs_lie_over_one_another_and_differ_in_what_they_were_told(tmp_path):
    sparse = write(tmp_path / "a", records())
    dense = write(tmp_path / "b", records(dense_epochs=3), with_options(compression=False, lr=0.02))
    page = page_of(sparse, dense)
    assert page.headings[0] == "oktopk, dense"
    assert [heading for heading in page.headings if heading in SPEECH + SENT] == SPEECH + SENT
    assert {"Time per step: oktopk", "Time per step: dense", "What differs"} <= set(page.headings)
    differing = page.text.partition("What differs")[2].partition("What they have in common")[0]
    assert differing.split() == ["oktopk", "dense", "lr", "0.01", "0.02", "compression", "true", "false"]
    assert "16 kB 8% of dense" in page.text
    assert "dense: 200 kB" in page.texts
    assert "120 not finished" in page.text


def test_runs_of_one_method_are_called_by_their_folders(tmp_path):
    runs = [write(tmp_path / name / "run", records(epochs=1)) for name in "ab"]
    assert page_of(*runs).headings[0] == "a/run, b/run"
    assert page_of(runs[0], write(tmp_path / "c", records(epochs=1))).headings[0] == "run, c"


def test_the_page_needs_nothing_else_and_lets_nothing_else_run(tmp_path):
    text = text_of(write(tmp_path / "run", records(epochs=1)))
    page = Page(text)
    assert page.links == []
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "default-src 'none'" in html.unescape(text)
    assert set(page.scripts[:-1]) == {"application/json"}
    assert page.scripts[-1] is None


def test_no_name_or_figure_of_a_run_becomes_a_tag(tmp_path):
    options = with_options(dnn=NASTY, compressor=NASTY, **{NASTY: [NASTY, {NASTY: NASTY}], "\ud800": "\ud800\x00"})
    config = {**options, "figures": {NASTY: NASTY, "wer": [NASTY]}, "versions": {NASTY: NASTY}, "hosts": NASTY}
    told = [{"kind": "event", "name": NASTY, "iter": 1, NASTY: NASTY}, {"kind": "event", "name": {"a": []}}]
    told += [{"kind": "event", "name": "summary", "steps_dense": 1, "ms_per_step_dense": {NASTY: NASTY}}]
    tested = {"kind": "val", "epoch": 0, "loss": 1.0, NASTY: 0.5}
    run = write(tmp_path / f"run{NASTY.replace('/', '')}", [*records(epochs=1), tested, *told], config)
    page = page_of(run)
    assert page.scripts.count(None) == 1
    assert NASTY in page.text


@pytest.mark.parametrize(
    "rows",
    [
        [iteration(0, loss=None)],
        [iteration(number, loss=None, phase="sparse") for number in range(60)],
        [iteration(0, epoch=10**15, loss=1e100), iteration(10**15, epoch=3, loss=-1e100, phase="sparse")],
        [step(0, "dense", t_iter=None, t_comm=None, bytes_sent=None), step(1, "sparse", skipped=True)],
        [step(0, "sparse", target_k=0), {"kind": "epoch", "epoch": [], "loss": "low"}, *epoch_end(0)],
        [step(0, "dense", bytes_sent=-5, t_iter=-1e99, loss=0.0)],
        [iteration(0), {"kind": "event"}, {"kind": "event", "name": "summary", "steps_sparse": 3.5}],
    ],
    ids=range(7),
)
@pytest.mark.parametrize("config", [CONFIG, None, {"options": [], "figures": 3, "ranks": -1, "command": [1, {}]}])
def test_whatever_is_missing_the_rest_is_shown(rows, config, tmp_path):
    page = page_of(write(tmp_path / "run", rows, config))
    assert "What came of it" in page.headings


def test_a_traced_run_has_its_communication_measured(tmp_path):
    run = write(tmp_path / "run", [step(0, "dense"), *epoch_end(0)])
    traced = [traced_step(0, 0, 0.0, 10.0), traced_step(1, 0, 0.0, 10.0)]
    traced += [record(0, start=2.0, seconds=4.0), record(1, start=5.0, seconds=1.0)]
    traced += [record(rank, NASTY, 2, start=7.0, seconds=1.0) for rank in (0, 1)] + [record(1, DROPPED, 12)]
    write_trace(run, traced, ["one", "two"])
    page = page_of(run)
    assert {"What was sent, and when", "A step of each rank: oktopk", "Communication, % of a step"} <= set(
        page.headings
    )
    rows = "dense, 0 10,000.0 50.0% 30.0% 200 bytes", "dense, 0 – 3000.00", "dense, allreduce 1 100 bytes 2500.000 60%"
    assert all(row in page.text for row in rows)
    assert "dropped, from the middle of the run: rank 1 12." in page.text
    assert page.scripts.count(None) == 1
    (run / "trace.csv").write_text("rank\n")
    with pytest.raises(UserError, match="no trace of a run"):
        text_of(run)


def test_an_inspected_run_says_why_it_converges(tmp_path):
    run = write(tmp_path / "run", records())
    assert "Why it converges" not in page_of(run).headings
    dense, sparse = ({**LINE, "iter": step, "phase": phase} for step, phase in ((30, "dense"), (50, "sparse")))
    ages = {"steps": 9, "mean": 2.5, "zeros": 1, "first": 0, "counts": [1, 2]}
    shares = {"layers.1.weight_ih_l0": [30, 400], f"{NASTY}.bias": [10, 100]}
    write_lines(run, dense, sparse, {**sparse, "iter": 70, "ages": ages, "selected": shares}, {**sparse, "iter": 999})
    page = page_of(run)
    after = page.headings[page.headings.index("Why it converges") + 1 :]
    assert after[:8] == [
        *("Overlap with the true choice, %", "Energy captured, %", "Residual norm", "Age of residual entries, steps"),
        *("Magnitudes: oktopk", "Ages of residual entries: oktopk"),
        *("Entries sent by layer: oktopk", "Entries sent by kind of parameter: oktopk"),
    ]
    assert {"gradient, dense step 30", "gradient, sparse step 50", "residual, sparse step 70"} <= set(page.texts)
    assert {"0 steps", "25 %", "2 to 3 steps", "50 %"} <= set(page.texts)
    assert "layers.1: 73.2% of the entries sent, 79.4% of the model" in page.texts
    assert "weight_ih: 75.6% of the entries sent, 80.2% of the model" in page.texts
    assert "Zeros: gradient of step 30 25%" in page.text
    two = page_of(run, write(tmp_path / "other", records(), with_options(compressor="gtopk")))
    assert "Magnitudes: oktopk" in two.headings
    assert "Magnitudes: gtopk" not in two.headings


def test_a_long_run_is_thinned_and_keeps_its_highest_loss(tmp_path):
    rows = [iteration(number, number // 1000, 1 + number % 7) for number in range(20_000)]
    rows[12_345]["loss"] = 8.5
    text = text_of(write(tmp_path / "run", rows))
    assert "12.346,8.5" in text
    assert len(text) < 400_000


@pytest.mark.parametrize("case", ["missing", "no run", "empty", "broken", "too many", "unwritable"])
def test_what_is_no_run_is_refused_in_one_sentence(case, tmp_path):
    run, words = tmp_path / "run", []
    if case == "no run":
        run.mkdir()
    elif case != "missing":
        write(run, [] if case == "empty" else [iteration(0)], tail="no json\n" if case == "broken" else "")
    if case == "too many":
        words = [tmp_path / str(number) for number in range(report.MOST_RUNS)]
    elif case == "unwritable":
        words = ["--out", tmp_path / "no" / "page.html"]
    done = run_program(REPORT, run, *words)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert not (run / "report.html").exists()
