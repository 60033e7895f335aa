-- Makes the search ignore case in every alphabet, also in databases of locale "C", whose lower() knows only the letters of ASCII. Such a
-- locale is the default of several Kubernetes operators and of `initdb --no-locale`.
DO $migration$
DECLARE
    -- The first collation that the server has; one of an installation without ICU and "C.utf8" stays with the database's own.
    folding text := coalesce(
        (SELECT format('COLLATE %I', collname) FROM pg_collation
         WHERE collname IN ('und-x-icu', 'pg_c_utf8', 'C.utf8') AND collencoding IN (-1, pg_char_to_encoding(getdatabaseencoding()))
         ORDER BY collname = 'und-x-icu' DESC, collname = 'pg_c_utf8' DESC LIMIT 1), '');
BEGIN
    EXECUTE format($function$
        CREATE FUNCTION lowercase(said text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT lower(said %s) $$
    $function$, folding);
END $migration$;

CREATE OR REPLACE FUNCTION words_of_message(owner text, body text) RETURNS tsvector LANGUAGE plpgsql STABLE AS $$
DECLARE
    said text;
    sign text;
BEGIN
    IF strpos(body, '\u0000') > 0 THEN
        RETURN NULL;
    END IF;
    SELECT left(string_agg(part ->> 'text', ' '), 50000) INTO said
    FROM json_array_elements(body::json -> 'parts') AS part WHERE part ->> 'type' = 'text';
    FOREACH sign IN ARRAY ARRAY['.', '/', '-', '@', '+', '<', '&', '_', '~'] LOOP
        said := replace(said, sign, ' ');
    END LOOP;
    RETURN array_to_tsvector(ARRAY[owner_word(owner)]) || to_tsvector('simple', lowercase(said));
END $$;
