-- A call as it came is content, so it goes with its run, also where the row of its execution was lost.

CREATE TRIGGER native_calls_go_with_their_run AFTER DELETE ON runs BEGIN
    DELETE FROM native_calls WHERE run_id = OLD.id;
END;
