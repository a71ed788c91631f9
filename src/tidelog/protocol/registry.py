"""The list of APIs. Each has one module, named by its key and imported on first use."""

from __future__ import annotations

from importlib import import_module

from tidelog.protocol.declare import Api, Message

_MODULES = (
    "k00_produce",
    "k01_fetch",
    "k02_list_offsets",
    "k03_metadata",
    "k08_offset_commit",
    "k09_offset_fetch",
    "k10_find_coordinator",
    "k11_join_group",
    "k12_heartbeat",
    "k13_leave_group",
    "k14_sync_group",
    "k15_describe_groups",
    "k16_list_groups",
    "k17_sasl_handshake",
    "k18_api_versions",
    "k19_create_topics",
    "k20_delete_topics",
    "k21_delete_records",
    "k22_init_producer_id",
    "k23_offset_for_leader_epoch",
    "k24_add_partitions_to_txn",
    "k25_add_offsets_to_txn",
    "k26_end_txn",
    "k27_write_txn_markers",
    "k28_txn_offset_commit",
    "k29_describe_acls",
    "k30_create_acls",
    "k31_delete_acls",
    "k32_describe_configs",
    "k33_alter_configs",
    "k34_alter_replica_log_dirs",
    "k35_describe_log_dirs",
    "k36_sasl_authenticate",
    "k37_create_partitions",
    "k42_delete_groups",
    "k43_elect_leaders",
    "k44_incremental_alter_configs",
    "k45_alter_partition_reassignments",
    "k46_list_partition_reassignments",
    "k47_offset_delete",
    "k48_describe_client_quotas",
    "k49_alter_client_quotas",
    "k50_describe_user_scram_credentials",
    "k51_alter_user_scram_credentials",
    "k56_alter_partition",
    "k57_update_features",
    "k58_envelope",
    "k60_describe_cluster",
    "k61_describe_producers",
    "k62_broker_registration",
    "k63_broker_heartbeat",
    "k64_unregister_broker",
    "k65_describe_transactions",
    "k66_list_transactions",
    "k67_allocate_producer_ids",
    "k68_consumer_group_heartbeat",
    "k69_consumer_group_describe",
    "k74_list_config_resources",
    "k75_describe_topic_partitions",
    "k10001_follow_cluster",
)
_module_by_key = {int(name[1:].partition("_")[0]): name for name in _MODULES}
_apis: dict[int, Api] = {}


def api_by_key(key: int) -> Api | None:
    api = _apis.get(key)
    if api is None:
        name = _module_by_key.get(key)
        if name is None:
            return None
        declared: Api = getattr(import_module(f"tidelog.protocol.messages.{name}"), name.partition("_")[2].upper())
        api = _apis[key] = declared
    return api


def all_apis() -> list[Api]:
    return [api for key in _module_by_key if (api := api_by_key(key)) is not None]


def request_class(api: Api) -> type[Message]:
    assert api.request_class is not None, f"{api!r} has no request"
    return api.request_class


def response_class(api: Api) -> type[Message]:
    assert api.response_class is not None, f"{api!r} has no response"
    return api.response_class
