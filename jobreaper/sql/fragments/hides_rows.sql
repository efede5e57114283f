-- Whether row-level security may hide rows of a table from this session's role. A policy that shows all
-- of them hides none, unless a restrictive one hides what it shows.
row_security_active(class.oid)
AND NOT EXISTS (SELECT FROM pg_policy
                 WHERE polrelid = class.oid
                   AND polpermissive
                   AND polcmd = '*'
                   AND pg_get_expr(polqual, polrelid) = 'true'
                   AND EXISTS (SELECT FROM unnest(polroles) AS role
                                WHERE role = 0 OR pg_has_role(role, 'USAGE'))
                   AND NOT EXISTS (
                           SELECT FROM pg_policy AS other
                            WHERE other.polrelid = class.oid
                              AND NOT other.polpermissive
                              AND other.polcmd IN ('*', 'r', 'w')
                              AND pg_get_expr(other.polqual, other.polrelid) <> 'true'
                              AND EXISTS (SELECT FROM unnest(other.polroles) AS role
                                           WHERE role = 0 OR pg_has_role(role, 'USAGE'))))
