"""A report as a browser shows it: drawn, without a complaint, pointed at, on a phone, in print, without JavaScript."""

import pytest

import browser
import report
from made_runs import records, with_options, write

pytestmark = pytest.mark.skipif(browser.program() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write(folder / "sparse", records()),
        write(folder / "dense", records(dense_epochs=3), with_options(compression=False)),
    ]
    path = folder / "report.html"
    path.write_text(report.report(report.shown([report.Run.read(run) for run in runs])))
    return path


@pytest.fixture(scope="module")
def window(page, tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


DRAWN = """[...document.querySelectorAll('figure > svg')].map(svg => {
    const shapes = [...svg.querySelectorAll('path, rect.area')].map(shape => shape.getBoundingClientRect());
    return [svg.getBoundingClientRect().width, Math.max(...shapes.map(box => box.width))];
})"""
TOLD = "[...document.querySelectorAll('.told tr')].map(row => row.innerText.trim().split(/\\s+/).join(' '))"


@pytest.mark.parametrize(("width", "phone"), [(1200, False), (390, True)])
def test_every_plot_is_drawn_at_every_width_without_a_complaint(width, phone, page, window):
    window.open(page, width=width, phone=phone)
    drawn = window.value(DRAWN)
    assert len(drawn) == 11
    for picture, widest in drawn:
        assert 300 < picture <= width
        assert widest > picture / 3
    assert window.value("document.documentElement.scrollWidth") <= width
    assert window.complaints == []


@pytest.mark.parametrize(("width", "phone"), [(1200, False), (900, False), (390, True)])
def test_long_names_of_runs_leave_the_page_as_wide_as_the_window(width, phone, window, tmp_path):
    of_one_method = "compressor=oktopk,density=0.001,momentum_correction=False,seed="
    runs = [write(tmp_path / f"{of_one_method}{name}", records()) for name in ("0", "1" + 100 * "0")]
    path = tmp_path / "report.html"
    path.write_text(report.report(report.shown([report.Run.read(run) for run in runs])))
    window.open(path, width=width, phone=phone)
    assert of_one_method in window.value("document.querySelector('.results th .run').innerText")
    assert window.value("document.documentElement.scrollWidth") <= width


def test_values_are_told_where_one_points_and_runs_are_hidden_where_one_clicks(page, window):
    window.open(page)
    selector = "[aria-label='WER on validation']"
    window.point(selector, across=0.96)
    assert window.value(TOLD) == ["oktopk 0.1667", "dense 0.1667"]
    window.point("span.run[data-run='1']", press=True)
    window.point(selector, across=0.96)
    assert window.value(TOLD) == ["oktopk 0.1667"]
    assert window.value("document.querySelectorAll('.off').length") > 5
    window.point("[aria-label='Time per step: dense']", across=0.5)
    assert "communication 10" in window.value(TOLD)
    assert window.complaints == []


def test_without_javascript_and_in_print_all_of_it_is_there(page, window):
    window.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(page)
        window.call("Emulation.setEmulatedMedia", media="print")
        assert len(window.value(DRAWN)) == 11
        assert window.value("document.querySelectorAll('[role=button]').length") == 0
    finally:
        window.call("Emulation.setEmulatedMedia", media="")
        window.call("Emulation.setScriptExecutionDisabled", value=False)
