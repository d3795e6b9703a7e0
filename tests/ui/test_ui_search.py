"""The list of runs: questions, answers, and the search through what was kept."""

import json
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from client_keys import bearer
from structlog.testing import capture_logs
from ui_rig import CLIENT, Browser, ui_proxy
from waiting import until

QUESTIONS = ("What time is it?", "Is the café open — or “closed”?", "Say hello")


async def asked(browser: Browser, question: str) -> str:
    """Ask a question with the client's key, and return the run's id."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}
    answer = await browser.proxy.ask(body, bearer(CLIENT))
    return answer.header("x-toolrelay-run") or ""


async def completed(browser: Browser) -> None:
    """Wait until the record has the end of all runs."""

    async def all_ended() -> bool:
        return all(run.status == "completed" for run in await browser.proxy.runs())

    await until(all_ended)


async def texts(browser: Browser, ids: list[str]) -> dict[str, Any]:
    """Return the texts of runs by id."""
    answer = await browser.send("POST", "runs/texts", {"runs": dict.fromkeys(ids, "chat")})
    assert answer.status == 200, answer.body
    return {row["id"]: row for row in answer.json["data"]}


@pytest.mark.parametrize("seal", [True, False])
async def test_runs_are_found_by_words_and_show_question_and_answer(seal: bool) -> None:
    """All words must occur, in any script and case, also in sealed content; the log says who searched."""
    async with ui_proxy(store={"content": "all", "seal": seal}) as (browser, upstream):
        await browser.sign_in()
        upstream.scripts *= 3
        ids = [await asked(browser, question) for question in QUESTIONS]
        await completed(browser)
        with capture_logs() as logs:
            known = await texts(browser, ids)
        assert [known[one]["question"] for one in ids] == list(QUESTIONS)
        assert {known[one]["answer"] for one in ids} == {"It is noon."}
        assert [line["runs"] for line in logs if line["event"] == "content_read"] == [3]
        for words, want in (
            ("caf%C3%A9", [ids[1]]),
            ("CAF%C3%89+open", [ids[1]]),
            ("hello+noon", [ids[2]]),
            ("hello+caf%C3%A9", []),
            ("get_current_time", ids[::-1]),
        ):
            with capture_logs() as logs:
                page = (await browser.get(f"runs?q={words}")).json
            assert [row["id"] for row in page["data"]] == want, words
            assert (page["searched"], page["has_more"]) == (3, False)
            assert [line["event"] for line in logs if "content" in line["event"]] == ["content_searched"]


async def test_words_are_compared_as_people_read_them() -> None:
    """Escapes of JSON hide no word, and the form of a request is no word of it."""
    async with ui_proxy(store={"content": "all"}) as (browser, _):
        await browser.sign_in()
        declared = {"type": "function", "function": {"name": "brew_coffee", "description": "Brews."}}
        body = orjson.dumps(
            {
                "model": "m",
                "stream": True,
                "messages": [{"role": "user", "content": 'Open "C:\\temp" at https://example.com/a\nnow'}],
                "tools": [declared],
            }
        )
        # As PHP's json_encode writes it.
        body = body.replace(b"https://example.com/a", b"https:\\/\\/example.com\\/a")
        run_id = (await browser.proxy.ask(body, bearer(CLIENT))).header("x-toolrelay-run")
        await completed(browser)
        for word in ('"C:\\temp"', "https://example.com/a", "now"):
            page = (await browser.get(f"runs?q={quote(word, safe='')}")).json
            assert [row["id"] for row in page["data"]] == [run_id], word
        for word in ("messages", "content", "role", "user", "stream", "brew_coffee", "tool_calls"):
            assert (await browser.get(f"runs?q={word}")).json["data"] == [], word


async def test_a_search_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that its bounds end says how far it came, and goes on from there."""
    from proxy.ui.runs import searching

    monkeypatch.setattr(searching, "_AT_ONCE", 2)
    monkeypatch.setattr(searching, "_MOST_RUNS", 2)
    async with ui_proxy(store={"content": "all"}) as (browser, upstream):
        await browser.sign_in()
        upstream.scripts *= 3
        ids = [await asked(browser, question) for question in QUESTIONS]
        await completed(browser)
        first = (await browser.get("runs?q=time+noon")).json
        assert (first["searched"], first["has_more"], first["last_id"]) == (2, True, ids[1])
        rest = (await browser.get(f"runs?q=time+noon&before={first['last_id']}")).json
        assert [row["id"] for row in rest["data"]] == [ids[0]]
        assert not rest["has_more"]


async def test_a_page_of_a_search_is_no_longer_than_a_page_of_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Questions and answers are read for one page, so an export would lack those of further rows."""
    from proxy.ui.runs import searching

    monkeypatch.setattr(searching, "_AT_ONCE", 2)
    monkeypatch.setattr(searching, "_MOST_FOUND", 2)
    async with ui_proxy(store={"content": "all"}) as (browser, upstream):
        await browser.sign_in()
        upstream.scripts *= 4
        ids = [await asked(browser, question) for question in ("time?", "time?", "date?", "time?")]
        await completed(browser)
        first = (await browser.get("runs?q=time%3F")).json
        assert [row["id"] for row in first["data"]] == [ids[3], ids[1]]
        rest = (await browser.get(f"runs?q=time%3F&before={first['last_id']}")).json
        assert [row["id"] for row in rest["data"]] == [ids[0]]


async def test_runs_are_found_by_figures_and_errors() -> None:
    """Least cost and duration, and a part of an error code, filter the list; nonsense is refused."""
    async with ui_proxy() as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser, "What time is it?")
        await completed(browser)
        for query, want in (
            ("min_s=0.000001", [run_id]),
            ("min_s=1000", []),
            ("min_cost=0.01", []),
            ("error=timeout", []),
            ("min_s=0.000001&tool=core__get_current_time", [run_id]),
        ):
            assert [row["id"] for row in (await browser.get(f"runs?{query}")).json["data"]] == want, query
        for query, param in (("min_s=fast", "min_s"), ("min_cost=-1", "min_cost"), ("q=" + "a+" * 9, "q")):
            answer = await browser.get(f"runs?{query}")
            assert (answer.status, answer.error["param"]) == (400, param)


async def test_nothing_is_shown_of_what_was_not_kept() -> None:
    """Without kept content, questions and answers are null, and words find facts of the record only."""
    async with ui_proxy(store={"content": "none"}) as (browser, _):
        await browser.sign_in()
        run_id = await asked(browser, "What time is it?")
        await completed(browser)
        assert (await texts(browser, [run_id]))[run_id] == {"id": run_id, "question": None, "answer": None}
        assert (await browser.get("runs?q=noon")).json["data"] == []
        assert len((await browser.get("runs?q=webui")).json["data"]) == 1
        answer = await browser.send(
            "POST", "runs/texts", {"runs": dict.fromkeys(map(str, range(101)), "chat")}
        )
        assert (answer.status, answer.error["param"]) == (400, "runs")
        assert json.loads(answer.body)["error"]["message"].startswith("runs must map at most 100")
