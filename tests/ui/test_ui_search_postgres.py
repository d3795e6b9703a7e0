"""The search, and what the pages sum up, with a record in PostgreSQL."""

from client_keys import bearer
from store_postgres import need_postgres, new_schema
from ui_rig import CLIENT, QUESTION, ui_proxy


async def test_runs_are_found_and_summed_up_in_postgres() -> None:
    """With PostgreSQL, runs are found by words, and lists, upstreams and keys have the same facts."""
    need_postgres()
    async with new_schema() as url, ui_proxy(store={"url": url, "content": "all"}) as (browser, _):
        await browser.sign_in()
        run_id = (await browser.proxy.ask(QUESTION, bearer(CLIENT))).header("x-toolrelay-run")
        await browser.proxy.run_reaches("completed")
        page = (await browser.get("runs?q=noon")).json
        assert [row["id"] for row in page["data"]] == [run_id]
        answer = await browser.send("POST", "runs/texts", {"runs": {run_id: "chat"}})
        assert answer.json["data"] == [
            {"id": run_id, "question": "What time is it?", "answer": "It is noon."}
        ]
        assert (await browser.get("upstreams")).json["data"][0]["recent"]["requests"] == 1
        keys = {row["name"]: row for row in (await browser.get("keys")).json["data"]}
        assert keys["webui"]["month"]["runs"] == 1
