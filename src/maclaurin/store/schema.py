"""The layout of ``results.sqlite``, in one place.

::

    study 1 ── arm n ─┬─ measurement n    one number per metric, NULL where it was not finite
                      └─ curve n          JSON arrays, null where a value was not finite
    environment n                         one row each time the study was started

A change of this layout raises ``SCHEMA_VERSION``. It and the application id lie in the header of the file
(``PRAGMA user_version`` and ``application_id``), so that a foreign or newer file is recognized before any of
its tables is read.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x6D61636C  # "macl"
SCHEMA_VERSION: Final = 1

TABLES: Final = """
CREATE TABLE study (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    name     TEXT NOT NULL,
    version  INTEGER NOT NULL,
    digest   TEXT NOT NULL,
    config   TEXT NOT NULL
);

CREATE TABLE environment (
    id     INTEGER PRIMARY KEY,
    time   TEXT NOT NULL,
    facts  TEXT NOT NULL
);

CREATE TABLE arm (
    key        TEXT NOT NULL PRIMARY KEY,
    section    TEXT NOT NULL,
    mechanism  TEXT NOT NULL,
    task       TEXT NOT NULL,
    seed       INTEGER NOT NULL,
    config     TEXT NOT NULL,
    seconds    REAL NOT NULL,
    notes      TEXT NOT NULL
);

CREATE TABLE measurement (
    arm_key   TEXT NOT NULL REFERENCES arm (key),
    position  INTEGER NOT NULL,
    metric    TEXT NOT NULL,
    value     REAL,
    trials    INTEGER,
    low       REAL,
    high      REAL,
    PRIMARY KEY (arm_key, position),
    UNIQUE (arm_key, metric)
);

CREATE TABLE curve (
    arm_key   TEXT NOT NULL REFERENCES arm (key),
    position  INTEGER NOT NULL,
    metric    TEXT NOT NULL,
    steps     TEXT NOT NULL,
    readings  TEXT NOT NULL,
    PRIMARY KEY (arm_key, position),
    UNIQUE (arm_key, metric)
);

CREATE INDEX arm_order ON arm (section, mechanism, task, seed, key);
"""
