"""The six steps of `make demo` on the page of the console: what to look at, where, and by what each is ticked off.

A step of `sql` is done when its query says so; one of `address` when somebody opened such a page. What follows `#` in a link
is a page of the console.
"""

BATCHES = "FROM \"mainstem.progress\" WHERE flow = 'revenue'"
WALK = {
    "title": "Streaming in two minutes",
    "steps": [
        {
            "title": "Rows come in.",
            "text": "Each order is a dot; its minute has a first total every ten seconds.",
            "link": "#/flows/revenue",
            "sql": f"SELECT sum(rows_out) > 0 AS done, format('{{:,}} orders were read', sum(rows_in)::BIGINT) AS said {BATCHES}",
        },
        {
            "title": "Some come late.",
            "text": "Mira sells at the door, and her phone was offline: her orders come minutes after they were placed.",
            "link": "#/flows/revenue",
            "sql": f"SELECT sum(late) > 0 AS done, sum(late) || ' orders came late' AS said {BATCHES}",
        },
        {
            "title": "Totals are corrected.",
            "text": 'A minute that was complete has another total; its pane says "late".',
            "link": "#/views/revenue",
            "sql": "SELECT count(*) > 0 AS done, count(*) || ' totals were corrected' AS said FROM revenue "
            "WHERE pane.timing = 'late'",
        },
        {
            "title": "The run is killed.",
            "text": "SIGKILL, in the middle of a batch; the run is started again, and goes on from its checkpoint.",
            "link": "#/",
            # From the kill, which the console noted, to the first batch that was reported after it.
            "sql": """
                WITH kill AS (SELECT min("at") AS moment, min_by(regexp_extract(text, 'in batch [0-9]+'), "at") AS where_it_was
                    FROM "mainstem.activity" WHERE what = 'acted' AND text LIKE 'kill:%'),
                back AS (SELECT min("at") AS moment FROM "mainstem.progress"
                    WHERE flow = 'revenue' AND rows_in > 0 AND "at" > (SELECT moment FROM kill))
                SELECT back.moment IS NOT NULL AS done,
                    trim('killed ' || where_it_was) || CASE WHEN back.moment IS NULL THEN '; it is started again' ELSE
                    format(', back after {:.1f} s', date_diff('millisecond', kill.moment, back.moment) / 1000) END AS said
                FROM kill, back WHERE kill.moment IS NOT NULL""",
            "action": {"name": "kill", "label": "Kill it", "body": {"flow": "revenue"}},
        },
        {
            "title": "Why is this number so?",
            "text": 'Press "why?" beside a total: it leads to the orders that it was made of.',
            "link": "#/views/revenue",
            "address": "why",
        },
        {
            "title": "Go back in time.",
            "text": "Drag the slider below the map: the page is as it was.",
            "link": "#/",
            "address": "at",
        },
    ],
}
