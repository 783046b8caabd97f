(use-modules (ice-9 rdelim))

(for-each (lambda (argument) (display argument) (newline))
          (cdr (command-line)))
(display (read-string))
(exit 3)
