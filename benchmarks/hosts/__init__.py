"""Several hosts on one machine: Linux namespaces, joined by a network whose delays, losses and cuts are made here."""
