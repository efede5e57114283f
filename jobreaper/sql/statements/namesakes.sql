-- What there is under the name of a function or view to be made: whether it takes the same
-- arguments, the name by which DROP knows it, its comment, and what of it was granted to whom.
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
