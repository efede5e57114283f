-- A table as this session sees it: its columns, whether rows are kept from it, and who it is. No row
-- back means that there is no such table for it. A domain stands for the type that it is made of.
SELECT (SELECT jsonb_object_agg(attname, jsonb_build_object(
                   'type', format_type(base.oid, NULL),
                   'own_type', format_type(atttypid, NULL),
                   'is_domain_of_enum', own.typtype = 'd' AND base.typtype = 'e',
                   'may_be_null', NOT (attnotnull OR own.typnotnull),
                   'max_length', CASE WHEN base.oid IN ('varchar'::regtype, 'bpchar'::regtype) THEN
                       nullif(GREATEST(atttypmod, own.typtypmod, 0), 0) - 4 END))::text
          FROM pg_attribute
          JOIN pg_type AS own ON own.oid = atttypid
          JOIN pg_type AS base ON base.oid = coalesce(nullif(own.typbasetype, 0), own.oid)
         WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped),
       row_security_active(class.oid)
           AND NOT EXISTS (SELECT FROM pg_policy
                            WHERE polrelid = class.oid
                              AND polpermissive
                              AND polcmd = '*'
                              AND pg_get_expr(polqual, polrelid) = 'true'
                              AND EXISTS (SELECT FROM unnest(polroles) AS role
                                           WHERE role = 0 OR pg_has_role(role, 'USAGE'))
                              -- A restrictive policy takes away what this one gives.
                              AND NOT EXISTS (
                                      SELECT FROM pg_policy AS other
                                       WHERE other.polrelid = class.oid
                                         AND NOT other.polpermissive
                                         AND other.polcmd IN ('*', 'r', 'w')
                                         AND pg_get_expr(other.polqual, other.polrelid) <> 'true'
                                         AND EXISTS (SELECT FROM unnest(other.polroles) AS role
                                                      WHERE role = 0 OR pg_has_role(role, 'USAGE')))),
       current_user::text
  FROM pg_class AS class
 WHERE class.oid = CASE WHEN coalesce(has_schema_privilege(to_regnamespace(%(schema)s), 'USAGE'), true)
                        THEN to_regclass(%(table)s) END
