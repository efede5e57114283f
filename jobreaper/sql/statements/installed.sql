-- The functions and views that this package has made: the name, the one by which DROP knows it, the
-- mark of its source, and of a function what it runs and how. Each name is quoted, as Python quotes
-- it.
SELECT format('%%s.%%s', schema.name, made.name),
       format('%%s %%s.%%s%%s', made.kind, schema.name, made.name, made.arguments),
       made.comment,
       made.body,
       made.settings
  FROM (SELECT pronamespace AS namespace,
               'FUNCTION' AS kind,
               '"' || replace(proname, '"', '""') || '"' AS name,
               '(' || pg_get_function_identity_arguments(oid) || ')' AS arguments,
               obj_description(oid, 'pg_proc') AS comment,
               prosrc AS body,
               proconfig || CASE WHEN prosecdef THEN ARRAY['SECURITY DEFINER'] END AS settings
          FROM pg_proc
        UNION ALL
        SELECT relnamespace, 'VIEW', '"' || replace(relname, '"', '""') || '"', '',
               obj_description(oid, 'pg_class'), NULL, NULL
          FROM pg_class
         WHERE relkind = 'v') AS made
  JOIN (SELECT oid, '"' || replace(nspname, '"', '""') || '"' AS name FROM pg_namespace) AS schema
    ON schema.oid = made.namespace
 WHERE made.comment LIKE %(mark)s
