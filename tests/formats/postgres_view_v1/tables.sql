SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA mainstem_prices_4837a97e_v1;
CREATE SCHEMA mainstem_prices_4837a97e_v2;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE mainstem_prices_4837a97e_v1.about (
    name text NOT NULL,
    value text
);
CREATE TABLE mainstem_prices_4837a97e_v1.rows (
    store text NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    yes boolean,
    tiny smallint,
    whole bigint,
    single real,
    double double precision,
    zero double precision,
    amount numeric(38,18),
    text text COLLATE pg_catalog."C",
    bytes bytea,
    day date,
    daytime time without time zone,
    moment timestamp with time zone,
    local timestamp without time zone,
    parts text COLLATE pg_catalog."C",
    list text COLLATE pg_catalog."C",
    pairs text COLLATE pg_catalog."C"
);
CREATE TABLE mainstem_prices_4837a97e_v1.changes (
    "position" bigint NOT NULL,
    change text NOT NULL,
    old mainstem_prices_4837a97e_v1.rows,
    new mainstem_prices_4837a97e_v1.rows
);
CREATE TABLE mainstem_prices_4837a97e_v1.commits (
    end_position bigint NOT NULL,
    committed_at bigint,
    epoch bigint,
    batch bigint
);
CREATE TABLE mainstem_prices_4837a97e_v1.offsets (
    topic text NOT NULL,
    partition integer NOT NULL,
    "end" bigint
);
CREATE TABLE mainstem_prices_4837a97e_v1.progress (
    only_row integer NOT NULL,
    flow text,
    epoch bigint,
    batch bigint,
    applied_at bigint,
    recording integer,
    trimmed bigint,
    CONSTRAINT progress_only_row_check CHECK ((only_row = 1))
);
CREATE TABLE mainstem_prices_4837a97e_v2.about (
    name text NOT NULL,
    value text
);
CREATE TABLE mainstem_prices_4837a97e_v2.rows (
    store text NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    yes boolean,
    tiny smallint,
    whole bigint,
    single real,
    double double precision,
    zero double precision,
    amount numeric(38,18),
    text text COLLATE pg_catalog."C",
    bytes bytea,
    day date,
    daytime time without time zone,
    moment timestamp with time zone,
    local timestamp without time zone,
    parts text COLLATE pg_catalog."C",
    list text COLLATE pg_catalog."C",
    pairs text COLLATE pg_catalog."C"
);
CREATE TABLE mainstem_prices_4837a97e_v2.changes (
    "position" bigint NOT NULL,
    change text NOT NULL,
    old mainstem_prices_4837a97e_v2.rows,
    new mainstem_prices_4837a97e_v2.rows
);
CREATE TABLE mainstem_prices_4837a97e_v2.commits (
    end_position bigint NOT NULL,
    committed_at bigint,
    epoch bigint,
    batch bigint
);
CREATE TABLE mainstem_prices_4837a97e_v2.offsets (
    topic text NOT NULL,
    partition integer NOT NULL,
    "end" bigint
);
CREATE TABLE mainstem_prices_4837a97e_v2.progress (
    only_row integer NOT NULL,
    flow text,
    epoch bigint,
    batch bigint,
    applied_at bigint,
    recording integer,
    trimmed bigint,
    CONSTRAINT progress_only_row_check CHECK ((only_row = 1))
);
CREATE TABLE public.mainstem_views (
    view text NOT NULL,
    facts text NOT NULL
);
CREATE VIEW public.prices AS
 SELECT store,
    number,
    yes,
    tiny,
    whole,
    single,
    double,
    zero,
    amount,
    text,
    bytes,
    day,
    daytime,
    moment,
    local,
    (parts)::json AS parts,
    (list)::json AS list,
    (pairs)::json AS pairs
   FROM mainstem_prices_4837a97e_v2.rows;
COPY mainstem_prices_4837a97e_v1.about (name, value) FROM stdin;
format	1
view	prices
version	1
key	["store", "number"]
schema	"store STRING, number INT, yes BOOLEAN, tiny TINYINT, whole BIGINT, single FLOAT, double DOUBLE, zero DOUBLE, amount DECIMAL(38, 18), text STRING, bytes BINARY, day DATE, daytime TIME, moment TIMESTAMP, local TIMESTAMP_NTZ, parts STRUCT<at: TIMESTAMP, n: INT>, list ARRAY<STRING>, pairs MAP<STRING, DECIMAL(5, 2)>"
\.
COPY mainstem_prices_4837a97e_v1.changes ("position", change, old, new) FROM stdin;
1	insert	\N	(A,1,t,-128,9223372036854775807,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")
2	insert	\N	(A,2,,,,,,,,,,,,,,,,)
3	insert	\N	(Ö,-1,t,-128,7,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")
4	update	(A,1,t,-128,9223372036854775807,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")	(A,1,t,-128,8,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")
5	delete	(A,2,,,,,,,,,,,,,,,,)	\N
\.
COPY mainstem_prices_4837a97e_v1.commits (end_position, committed_at, epoch, batch) FROM stdin;
3	1767225600000000	3	0
4	1767225600000000	3	1
5	1767225600000000	3	2
\.
COPY mainstem_prices_4837a97e_v1.offsets (topic, partition, "end") FROM stdin;
orders	0	5
orders	1	2
clicks	0	1
\.
COPY mainstem_prices_4837a97e_v1.progress (only_row, flow, epoch, batch, applied_at, recording, trimmed) FROM stdin;
1	prices	3	2	1767225600000000	0	0
\.
COPY mainstem_prices_4837a97e_v1.rows (store, number, yes, tiny, whole, single, double, zero, amount, text, bytes, day, daytime, moment, local, parts, list, pairs) FROM stdin;
Ö	-1	t	-128	7	0.1	NaN	-0	12345678901234567890.000000000000000001	Köln'"\n	\\x00ff	1969-12-31	23:59:59.999999	2026-03-01 12:30:00.123456+00	2026-03-01 12:30:00.123456	{"at":"2026-03-01T12:30:00.123456Z","n":null}	["a",null,""]	[["b","1.50"],["a",null]]
A	1	t	-128	8	0.1	NaN	-0	12345678901234567890.000000000000000001	Köln'"\n	\\x00ff	1969-12-31	23:59:59.999999	2026-03-01 12:30:00.123456+00	2026-03-01 12:30:00.123456	{"at":"2026-03-01T12:30:00.123456Z","n":null}	["a",null,""]	[["b","1.50"],["a",null]]
\.
COPY mainstem_prices_4837a97e_v2.about (name, value) FROM stdin;
format	1
view	prices
version	2
key	["store", "number"]
schema	"store STRING, number INT, yes BOOLEAN, tiny TINYINT, whole BIGINT, single FLOAT, double DOUBLE, zero DOUBLE, amount DECIMAL(38, 18), text STRING, bytes BINARY, day DATE, daytime TIME, moment TIMESTAMP, local TIMESTAMP_NTZ, parts STRUCT<at: TIMESTAMP, n: INT>, list ARRAY<STRING>, pairs MAP<STRING, DECIMAL(5, 2)>"
\.
COPY mainstem_prices_4837a97e_v2.changes ("position", change, old, new) FROM stdin;
5	none	\N	\N
6	delete	(Ö,-1,t,-128,7,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")	\N
7	insert	\N	(B,5,t,-128,1,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")
8	update	(A,1,t,-128,8,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")	(A,1,t,-128,9,0.1,NaN,-0,12345678901234567890.000000000000000001,"Köln'""\n","\\\\x00ff",1969-12-31,23:59:59.999999,"2026-03-01 12:30:00.123456+00","2026-03-01 12:30:00.123456","{""at"":""2026-03-01T12:30:00.123456Z"",""n"":null}","[""a"",null,""""]","[[""b"",""1.50""],[""a"",null]]")
\.
COPY mainstem_prices_4837a97e_v2.commits (end_position, committed_at, epoch, batch) FROM stdin;
7	1767225600000000	0	-1
8	1767225600000000	4	1
\.
COPY mainstem_prices_4837a97e_v2.offsets (topic, partition, "end") FROM stdin;
orders	0	6
orders	1	2
\.
COPY mainstem_prices_4837a97e_v2.progress (only_row, flow, epoch, batch, applied_at, recording, trimmed) FROM stdin;
1	prices	4	1	1767225600000000	1	0
\.
COPY mainstem_prices_4837a97e_v2.rows (store, number, yes, tiny, whole, single, double, zero, amount, text, bytes, day, daytime, moment, local, parts, list, pairs) FROM stdin;
B	5	t	-128	1	0.1	NaN	-0	12345678901234567890.000000000000000001	Köln'"\n	\\x00ff	1969-12-31	23:59:59.999999	2026-03-01 12:30:00.123456+00	2026-03-01 12:30:00.123456	{"at":"2026-03-01T12:30:00.123456Z","n":null}	["a",null,""]	[["b","1.50"],["a",null]]
A	1	t	-128	9	0.1	NaN	-0	12345678901234567890.000000000000000001	Köln'"\n	\\x00ff	1969-12-31	23:59:59.999999	2026-03-01 12:30:00.123456+00	2026-03-01 12:30:00.123456	{"at":"2026-03-01T12:30:00.123456Z","n":null}	["a",null,""]	[["b","1.50"],["a",null]]
\.
COPY public.mainstem_views (view, facts) FROM stdin;
prices	{\n  "format": 1,\n  "id": "4837a97ec2184306a288dece6f8ad4f4",\n  "key": [\n    "store",\n    "number"\n  ],\n  "live": 2,\n  "versions": [\n    {\n      "number": 1,\n      "schema": "store STRING, number INT, yes BOOLEAN, tiny TINYINT, whole BIGINT, single FLOAT, double DOUBLE, zero DOUBLE, amount DECIMAL(38, 18), text STRING, bytes BINARY, day DATE, daytime TIME, moment TIMESTAMP, local TIMESTAMP_NTZ, parts STRUCT<at: TIMESTAMP, n: INT>, list ARRAY<STRING>, pairs MAP<STRING, DECIMAL(5, 2)>",\n      "created_at": 1767225600000000\n    },\n    {\n      "number": 2,\n      "schema": "store STRING, number INT, yes BOOLEAN, tiny TINYINT, whole BIGINT, single FLOAT, double DOUBLE, zero DOUBLE, amount DECIMAL(38, 18), text STRING, bytes BINARY, day DATE, daytime TIME, moment TIMESTAMP, local TIMESTAMP_NTZ, parts STRUCT<at: TIMESTAMP, n: INT>, list ARRAY<STRING>, pairs MAP<STRING, DECIMAL(5, 2)>",\n      "created_at": 1767225600000000\n    }\n  ],\n  "history": [\n    {\n      "version": 1,\n      "after": 0\n    },\n    {\n      "version": 2,\n      "after": 5\n    }\n  ],\n  "changes_max": 1000000,\n  "changes_age_us": 604800000000\n}\n
\.
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.about
    ADD CONSTRAINT about_pkey PRIMARY KEY (name);
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.commits
    ADD CONSTRAINT commits_pkey PRIMARY KEY (end_position);
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.offsets
    ADD CONSTRAINT offsets_pkey PRIMARY KEY (topic, partition);
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY mainstem_prices_4837a97e_v1.rows
    ADD CONSTRAINT rows_pkey PRIMARY KEY (store, number);
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.about
    ADD CONSTRAINT about_pkey PRIMARY KEY (name);
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.commits
    ADD CONSTRAINT commits_pkey PRIMARY KEY (end_position);
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.offsets
    ADD CONSTRAINT offsets_pkey PRIMARY KEY (topic, partition);
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY mainstem_prices_4837a97e_v2.rows
    ADD CONSTRAINT rows_pkey PRIMARY KEY (store, number);
ALTER TABLE ONLY public.mainstem_views
    ADD CONSTRAINT mainstem_views_pkey PRIMARY KEY (view);
