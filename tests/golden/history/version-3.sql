BEGIN TRANSACTION;
CREATE TABLE figure (
        series INTEGER NOT NULL REFERENCES series (id),
        night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        value REAL NOT NULL,
        error REAL,
        n INTEGER NOT NULL,
        PRIMARY KEY (series, night)
    ) WITHOUT ROWID;
INSERT INTO "figure" VALUES(1,1,101.5,0.01,3);
INSERT INTO "figure" VALUES(1,2,99.0,0.01,3);
INSERT INTO "figure" VALUES(2,1,1.25,NULL,3);
CREATE TABLE known (
        case_id TEXT NOT NULL,
        until_night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        reason TEXT NOT NULL,
        PRIMARY KEY (case_id, until_night)
    ) WITHOUT ROWID;
INSERT INTO "known" VALUES('ps',1,'a new lock');
CREATE TABLE lost (
        night INTEGER NOT NULL REFERENCES night (id) ON DELETE CASCADE,
        case_id TEXT NOT NULL,
        workload TEXT NOT NULL,
        shape TEXT NOT NULL,
        strategy TEXT NOT NULL,
        status TEXT NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (night, case_id)
    ) WITHOUT ROWID;
INSERT INTO "lost" VALUES(1,'x-1','w','s','x','failed','worker-died: gone');
INSERT INTO "lost" VALUES(2,'x-1','w','s','x','failed','worker-died: gone');
CREATE TABLE night (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        started_utc TEXT NOT NULL,
        day INTEGER NOT NULL,
        experiment TEXT NOT NULL,
        run TEXT NOT NULL UNIQUE,
        run_dir TEXT NOT NULL,
        git_sha TEXT,
        git_dirty INTEGER
    , workload_commits TEXT, checksum TEXT);
INSERT INTO "night" VALUES(1,'2026-03-02','2026-03-02T02:00:00+00:00',20510,'x','run-2','runs/2','sha2',0,NULL,'638b84cbdd3ce1b73c291e886c8345b64c13e8fb36ebc1e58bab4cfb2d26f8c4');
INSERT INTO "night" VALUES(2,'2026-03-03','2026-03-03T02:00:00+00:00',20511,'x','run-3','runs/3','sha3',0,'{"model.py:net": {"git_dirty": true, "git_sha": "sha9", "name": "models"}}','49d4942dea0991f7be0d80a4ad81bebb01cec80297b541f8ae447a13a2f9ddbd');
CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        case_id TEXT NOT NULL,
        workload TEXT NOT NULL,
        shape TEXT NOT NULL,
        strategy TEXT NOT NULL,
        comparison_key TEXT NOT NULL,
        lock_hash TEXT NOT NULL,
        metric TEXT NOT NULL,
        against TEXT NOT NULL,
        UNIQUE (case_id, comparison_key, lock_hash, metric, against)
    );
INSERT INTO "series" VALUES(1,'ps-1','w','2 workers','ps','k','l','rate','');
INSERT INTO "series" VALUES(2,'ps-1','w','2 workers','ps','k','l','ratio','single');
CREATE INDEX night_by_day ON night (day);
COMMIT;
PRAGMA application_id = 1398035010;
PRAGMA user_version = 3;
