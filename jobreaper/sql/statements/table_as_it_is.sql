-- A table as this session sees it: its columns with their types, whether rows are kept from it, and
-- who it is. No row back means that there is no such table for it.
SELECT (SELECT jsonb_object_agg(attname, format_type(coalesce(nullif(typbasetype, 0), atttypid), NULL))::text
          FROM pg_attribute
          JOIN pg_type ON pg_type.oid = atttypid
         WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped),
       row_security_active(class.oid)
           AND NOT EXISTS (SELECT FROM pg_policy
                            WHERE polrelid = class.oid
                              AND polpermissive
                              AND polcmd = '*'
                              AND pg_get_expr(polqual, polrelid) = 'true'
                              AND EXISTS (SELECT FROM unnest(polroles) AS role
                                           WHERE role = 0 OR pg_has_role(role, 'USAGE'))),
       current_user::text
  FROM pg_class AS class
 WHERE class.oid = CASE WHEN coalesce(has_schema_privilege(to_regnamespace(%(schema)s), 'USAGE'), true)
                        THEN to_regclass(%(table)s) END
