"""Which seed shows which planted mistake, and why some can't be shown.

What always holds: the numbers are those of the first seed, from 0 on, that was seen to fail with the mistake, unless an
earlier one takes much longer to fail. Whatever changes the order of events changes them: tests go on with the seeds
that follow. A run that fails for want of progress simulates minutes, so such mistakes are left to `make soak`.
"""

from __future__ import annotations

CAUGHT: dict[str, int] = {
    "acknowledge_before_replication": 0,
    "show_uncommitted_records": 0,
    "commit_below_min_isr": 0,
    "expand_too_early": 0,
    "shrink_before_the_answer": 1,
    "never_truncate": 0,
    "count_what_was_sent": 0,
    "write_no_leader_epochs": 0,
    "keep_the_leader_epoch": 0,
    "elect_anybody": 7,
    "elect_uncleanly": 8,
    "forget_settings_of_topics": 8,
    "write_repeated_batches": 0,
    "show_open_transactions": 1,
    "list_no_aborted_transactions": 1,
    "commit_what_was_aborted": 1,
    "count_offsets_of_aborted_transactions": 18,
    "give_away_what_is_owned": 0,
    "report_an_old_end": 2,
    "take_requests_of_former_processes": 3,
    "trust_after_a_crash": 6,
    "give_producer_ids_twice": 2,
    "skip_fsync": 74,
    "serve_before_loading": 29,
    "look_partitions_up_again": 65,
    "write_as_deposed_controller": 24,
    "forget_who_is_joining": 18,
    "answer_commits_without_writing": 8,
}
"""In every test run."""

RARE: dict[str, int] = {
    "finish_moves_early": 27,
    "forget_a_marker": 1,
    "repeat_markers_later": 1,
    "let_zombies_write": 3,
    "mark_another_partition": 1,
    "add_no_partitions": 1,
}
"""By `make soak`: few seeds show it, or it takes long."""

NOT_CAUGHT: dict[str, str] = {
    "commit_despite_eligible_replicas": (
        "A second lock: with one image, ISR, ELR and min.insync.replicas fit together, so an ISR is below its "
        "minimum whenever the ELR has members, and nothing is committed anyway. It would matter if brokers "
        "had different defaults. 120 seeds without it."
    ),
    "accept_old_metadata": (
        "A second lock: who asks a controller names the newest controller epoch it has heard of, and a controller "
        "of an older one refuses; within one epoch, revisions only grow. 35 seeds without it."
    ),
    "ignore_epochs_of_fetches": (
        "A second lock: a leader still compares the epoch of the last record that a follower has with its own "
        "log, counts only fetches under the follower's broker epoch, and has each change of an ISR checked by the "
        "controller. Most runs have fetches that only this mistake lets pass, and come to no harm. 35 seeds "
        "without it."
    ),
    "lead_past_the_session": (
        "A second lock: nobody copies from a former leader, so its high watermark stands still, acks=all is never "
        "answered, and the controller refuses its changes of an ISR for their leader epoch. 28 seeds without it."
    ),
    "lose_new_directories": (
        "The simulation lacks it: its machines had their data directories before the run, and a power cut takes "
        "names in them, not their own. tests/unit/log/test_directory_set.py cuts the power above a new one."
    ),
    "never_open_again": (
        "The simulation hides it: when disks are repaired, its operators restart every broker with a log that is "
        "not open, and a restart opens the log with or without the mistake. 20 seeds without it."
    ),
}
"""By no seed, and why."""

OPEN: dict[str, int] = {
    "give_up_changes_without_an_answer": 30,
    "take_any_change_of_an_isr": 15,
    "truncate_to_the_high_watermark": 29,
    "take_lost_writes_for_done": 23,
    "recover_without_checksums": 35,
    "decide_before_writing": 25,
    "serve_after_losing_the_log": 20,
    "load_only_what_was_committed": 30,
    "ignore_generations": 18,
    "distrust_a_process_that_registers_again": 5,
    "stop_under_an_old_registration": 15,
    "keep_recovery_points": 10,
    "leave_lost_replicas_offline": 15,
    "fail_without_the_store": 5,
    "let_anyone_lead_last": 15,
    "refuse_what_a_marker_revoked": 5,
    "hide_partitions_that_move": 15,
    "pass_on_why_there_are_no_ids": 15,
}
"""By none of so many seeds, most of them chosen by their troubles: too few to tell."""
