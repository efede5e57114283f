-- The functions and views that this package has made, with the mark of their source.
SELECT format('"%%s"."%%s"', replace(namespace.nspname, '"', '""'), replace(made.name, '"', '""')),
       made.comment
  FROM (SELECT pronamespace AS namespace, proname AS name,
               obj_description(oid, 'pg_proc') AS comment
          FROM pg_proc
        UNION ALL
        SELECT relnamespace, relname, obj_description(oid, 'pg_class')
          FROM pg_class
         WHERE relkind = 'v') AS made
  JOIN pg_namespace AS namespace ON namespace.oid = made.namespace
 WHERE made.comment LIKE %(mark)s
