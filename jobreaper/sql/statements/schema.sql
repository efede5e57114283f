-- The functions and views in the database, and who may create others.

-- name: installed
-- The functions and views that this package has created: the name, the name for DROP, the mark of
-- the source and, for a function, its body and settings. Names are quoted as in Python.
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


-- name: namesakes
-- The existing objects with the name of a function or view to create: whether the arguments are the
-- same, the name for DROP, the comment, and the granted rights.
SELECT found.is_same,
       format('%%s %%I.%%I%%s', %(kind)s::text, %(schema)s::text, %(name)s::text, found.arguments),
       found.comment,
       ARRAY(SELECT format('GRANT %%s ON %%s TO %%s%%s', acl.privilege_type, %(signature)s::text,
                           CASE acl.grantee WHEN 0 THEN 'PUBLIC'
                                ELSE acl.grantee::regrole::text END,
                           CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
               FROM aclexplode(found.acl) AS acl
              WHERE acl.grantee <> found.owner)
  FROM (SELECT pronamespace AS namespace,
               'FUNCTION' AS kind,
               proname AS name,
               '(' || pg_get_function_identity_arguments(oid) || ')' AS arguments,
               coalesce(oid = to_regprocedure(%(function)s), false) AS is_same,
               obj_description(oid, 'pg_proc') AS comment,
               proacl AS acl,
               proowner AS owner
          FROM pg_proc
        UNION ALL
        SELECT relnamespace, 'VIEW', relname, '', true, obj_description(oid, 'pg_class'),
               relacl, relowner
          FROM pg_class) AS found
  JOIN pg_namespace AS namespace ON namespace.oid = found.namespace
 WHERE namespace.nspname = %(schema)s
   AND found.name = %(name)s
   AND found.kind = %(kind)s


-- name: place
-- The schemas in which this session finds tables, or would create them; and those in which a function
-- of the job table has to look names up: of the key's type, of types of extensions, whose operators
-- are there (what an enum needs is in pg_catalog), and of all that a trigger without a search_path of
-- its own may name.
SELECT (SELECT jsonb_object_agg(given.name, coalesce(namespace.nspname, %(first)s))
          FROM unnest(%(names)s::text[], %(tables)s::text[]) AS given (name, named)
          LEFT JOIN pg_class AS found ON found.oid = to_regclass(given.named)
          LEFT JOIN pg_namespace AS namespace ON namespace.oid = found.relnamespace)::text,
       ARRAY(SELECT namespace.nspname::text
               FROM pg_attribute AS own
               JOIN pg_type AS type ON type.oid = own.atttypid
               JOIN pg_namespace AS namespace ON namespace.oid = type.typnamespace
              WHERE own.attrelid = to_regclass(%(table)s)
                AND namespace.nspname <> 'pg_catalog'
                AND (own.attname = ANY (%(keys)s::text[])
                     OR own.attname = ANY (%(columns)s::text[]) AND type.typtype = 'b')
              UNION
             SELECT unnest(current_schemas(false))::text
               FROM pg_trigger AS trigger
               JOIN pg_proc AS called ON called.oid = trigger.tgfoid
               JOIN pg_language AS language ON language.oid = called.prolang
              WHERE trigger.tgrelid IN (SELECT to_regclass(given.named)
                                          FROM unnest(%(tables)s::text[]) AS given (named))
                AND NOT trigger.tgisinternal
                AND language.lanname NOT IN ('internal', 'c')
                -- This one of ours names nothing.
                AND called.proname <> 'jobreaper_stage_is_type'
                AND NOT EXISTS (SELECT FROM unnest(called.proconfig) AS setting
                                 WHERE setting LIKE 'search_path=%%')
              ORDER BY 1)


-- name: schema_creators
-- Who else may create functions in a schema in which a session of the reaper looks names up: neither
-- the schema's owner, nor a superuser, nor this role, nor the owner of a job table in it.
SELECT namespace.nspname,
       string_agg(CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END, ', '
                  ORDER BY acl.grantee)
  FROM pg_namespace AS namespace
 CROSS JOIN aclexplode(coalesce(namespace.nspacl, acldefault('n', namespace.nspowner))) AS acl
 WHERE namespace.nspname = ANY (current_schemas(false)::text[] || %(schemas)s::text[])
   AND acl.privilege_type = 'CREATE'
   AND acl.grantee <> namespace.nspowner
   AND acl.grantee NOT IN (SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user)
   AND acl.grantee NOT IN (SELECT relowner FROM pg_class
                            WHERE oid IN (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name))
 GROUP BY namespace.nspname
 ORDER BY namespace.nspname
