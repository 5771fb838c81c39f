"""Each row of the tables of ``docs/faults.md`` has a test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "faults.md").read_text()

ROOMS = {"C": "clusters", "D": "distributed", "N": "network", "R": "remote", "X": "devices/xla/jobs"}

ROWS = {
    "Jobs": {
        "a process is killed before the job begins": "D/test_beginning.py test_slow_starters_are_waited_for",
        "a process is killed while the job begins": "D/test_beginning.py test_a_process_that_is_killed",
        "a host needs minutes to start": "D/test_heartbeats.py test_a_host_that_takes_minutes_to_start",
        "a process compiles for minutes": "X/test_first_runs.py test_the_first_run_waits_for_who_compiles",
        "a process is killed before the first run": "X/test_first_runs.py test_who_is_lost_before_the_first",
        "a process is killed while all compile": "X/test_lost_processes.py test_a_process_that_is_lost_while",
        "a process is killed in a transfer": "X/test_lost_processes.py test_a_lost_process",
        "process 0, which leads the job": "D/test_job.py test_a_killed_leader_is_an_error_that_names_it",
        "a process stands still": "D/test_ending.py test_a_process_that_stands_still_is_lost",
        "the network between two hosts fails": "N/test_jobs.py test_a_partition_that_is_shorter_than_the_heartbeat",
        "the network fails for longer": "N/test_jobs.py test_a_longer_partition_is_a_loss_on_both_sides",
        "the network is slow": "N/test_jobs.py test_a_job_over_slow_wires",
    },
    "Servers and their clients": {
        "the server is killed": "R/client/test_connection.py test_a_server_that_dies_fails_all_that_wait",
        "the server stands still": "R/client/test_connection.py test_a_server_is_lost_by_its_silence",
        "the process that compiles": "R/security/test_isolation.py test_a_client_learns_how_its_process_ended",
        "a client is killed": "R/test_failures.py test_a_client_that_dies_in_the_middle_of_an_execution",
        "a client's host or network fails": "R/test_failures.py test_both_ends_notice_a_network_that_stalls",
        "the network fails for less": "N/test_remote.py test_a_partition_that_is_shorter_than_the_heartbeat",
        "the network fails for longer": "N/test_remote.py test_a_longer_partition_ends_the_session_on_both_sides",
        "the network is slow": "N/test_remote.py test_a_client_over_slow_wires",
        "the shared memory of": "R/transport/test_transfer_directory.py test_arrays_go_over_the_connection_where",
    },
    "Clusters": {
        "a worker is killed while the cluster starts": "C/workers/test_start.py test_a_worker_that_crashes_is_named",
        "a worker needs minutes to start": "C/workers/test_start.py test_a_worker_that_is_late_is_named",
        "a worker is killed before the first run": "C/test_lost_workers.py test_what_depends_on_a_lost_worker_fails",
        "a worker stands still": "C/test_lost_workers.py test_a_hung_worker_that_cannot",
        "a worker's host or network fails": "N/test_clusters.py test_a_host_that_is_cut_off_is_a_lost_worker",
        "the network fails for less": "N/test_clusters.py test_a_short_partition_ends_nothing",
        "the network is slow": "N/test_clusters.py test_a_cluster_over_slow_wires",
        "the controller is killed": "C/workers/test_start.py test_the_end_of_the_controller_is",
        "the controller's host or network fails": "N/test_clusters.py test_workers_end_without_their_controller",
        "the disk of `logs`": "C/launchers/test_worker_output.py test_lines_for_which_the_disk_has_no_room",
    },
}


def test_each_row_has_a_test() -> None:
    for title, tests in ROWS.items():
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\w.*?) \|", section, re.MULTILINE)[1:]
        assert len(rows) == len(tests), title
        for row, (begin, place) in zip(rows, tests.items(), strict=True):
            assert row.startswith(begin), row
            path, _, name = place.partition(" ")
            room, _, file = path.partition("/")
            assert f"\ndef {name}" in (TESTS / ROOMS[room] / file).read_text(), place
